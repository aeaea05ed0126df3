import { intAttribute, showShape, stringAttribute } from '../graph/ir.ts';
import { type Value, div, mul, neg, reduceSum, reshape, where } from './builder.ts';
import type { Composite, ExpandContext } from './composite.ts';
import { badOperands } from './operands.ts';
import { scalarLike } from './rules.ts';

/**
 * The negative log-likelihood of each target class, [N, ...places], from log-probabilities [N, C, ...places]. Without a
 * reduction it has one value for each example (and place); `mean` and `sum` mix the examples, and the batch rule of their
 * sum says so.
 */
function negativeLikelihood({ b, node, inputs }: ExpandContext, logits: Value): Value {
  const [target, weight] = [inputs[1]!, inputs[2]];
  const [shape, places] = [b.shape(logits), b.shape(target)];
  if (shape.length < 2 || shape.toSpliced(1, 1).join() !== places.join() || (weight !== undefined && b.shape(weight).join() !== String(shape[1]))) {
    throw badOperands({ node }, `scores ${showShape(shape)} and classes ${showShape(places)}`,
      'scores [N, C, ...], classes [N, ...] and at most one weight for each of the C');
  }
  const ignored = node.attributes['ignore_index'] === undefined ? undefined
    : b.op('Equal', [target, index(b, target, intAttribute(node, 'ignore_index', -1))]);
  const classes = ignored === undefined ? target : where(b, ignored, index(b, target, 0), target);
  // What is ignored is left out by selection: its value may be infinite.
  const kept = (x: Value): Value => (ignored === undefined ? x : where(b, ignored, scalarLike(b, 0, x), x));
  const column = reshape(b, classes, [places[0]!, 1, ...places.slice(1)]);
  const picked = reshape(b, b.op('GatherElements', [logits, column], { axis: { type: 'int', value: 1 } }), places);
  const weights = weight === undefined ? undefined : b.op('Gather', [weight, classes]);
  const losses = kept(weights === undefined ? neg(b, picked) : mul(b, neg(b, picked), weights));
  const reduction = stringAttribute(node, 'reduction', 'mean');
  if (reduction === 'none') return losses;
  const everything = places.map((_, i) => i);
  const sum = reduceSum(b, losses, everything);
  if (reduction === 'sum') return sum;
  if (reduction !== 'mean') throw badOperands({ node }, `reduction "${reduction}"`, 'none, sum or mean');
  return div(b, sum, reduceSum(b, kept(weights ?? b.op('Expand', [scalarLike(b, 1, logits), b.ints(places)])), everything));
}

const index = (b: ExpandContext['b'], like: Value, i: number): Value =>
  b.op('Cast', [b.scalar(i, 'int64')], { to: { type: 'int', value: b.type(like).dtype === 'int32' ? 6 : 7 } });

const negativeLogLikelihoodLoss: Composite = {
  expand: (context) => [negativeLikelihood(context, context.inputs[0]!)],
  untrained: [2],
};

const softmaxCrossEntropyLoss: Composite = {
  expand: (context) => {
    const logits = context.b.op('LogSoftmax', [context.inputs[0]!], { axis: { type: 'int', value: 1 } });
    return [negativeLikelihood(context, logits), logits];
  },
  untrained: [2],
};

/** Losses that a graph may hold itself. */
export const losses = {
  NegativeLogLikelihoodLoss: negativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss: softmaxCrossEntropyLoss,
} satisfies Record<string, Composite>;
