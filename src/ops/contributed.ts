import { floatAttribute, intAttribute } from '../graph/ir.ts';
import type { Composite } from './composite.ts';
import type { Operator } from './operator.ts';

/** What ONNX Runtime's optimizer writes for x / rms(x) · scale; it stands in the standard domain. */
const simplifiedLayerNormalization: Composite = {
  learned: [1],
  expand: ({ b, node, inputs }) => {
    const [x, scale] = [inputs[0]!, inputs[1]!];
    const rank = b.shape(x).length;
    const first = intAttribute(node, 'axis', -1);
    const axes = b.ints(b.shape(x).flatMap((_, i) => (i >= (first < 0 ? first + rank : first) ? [i] : [])));
    const meanSquare = b.op('ReduceMean', [b.op('Mul', [x, x]), axes]);
    const shifted = b.op('Add', [meanSquare, b.scalar(floatAttribute(node, 'epsilon', 1e-5), b.type(x).dtype)]);
    const inverse = b.op('Reciprocal', [b.op('Sqrt', [shifted])]);
    return [b.op('Mul', [b.op('Mul', [x, inverse]), scale]), inverse];
  },
};

/** Operators that only ONNX Runtime's optimizer writes. */
export const contributed = {
  SimplifiedLayerNormalization: simplifiedLayerNormalization,
} satisfies Record<string, Operator | Composite>;
