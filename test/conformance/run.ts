import { upgrade } from '../../src/graph/upgrade.ts';
import { readModel } from '../../src/graph/file.ts';
import { type Graph, type TypedGraph, showType } from '../../src/graph/ir.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Tensor, isFloat, sameShape } from '../../src/tensor/tensor.ts';
import { type Compiled, withSession } from '../support/operator-sample.ts';
import { testRandom } from '../support/random-network.ts';
import { type Case, type DataSet, dataSetsOf, modelOf } from './cases.ts';
import { disagreement } from './differences.ts';
import { gradientName, gradientProgram, seedName } from './gradient.ts';
import { numbersOf } from './numbers.ts';
import { nudged } from './nudge.ts';
import { type Feeds, type Program, withBound } from './program.ts';

/** What is asked of a case, in this order; a stage that fails ends it. */
export const stages = ['import', 'shapes', 'forward', 'gradient'] as const;
export type Stage = (typeof stages)[number];

export type Outcome =
  /** `gradient`: whether there was one to check, from a float input to a float output. */
  | { readonly passed: true; readonly gradient: boolean }
  | { readonly passed: false; readonly stage: Stage; readonly message: string };

class Failure extends Error {
  readonly stage: Stage;
  constructor(stage: Stage, cause: unknown) {
    super(cause instanceof Error ? cause.message : String(cause));
    this.stage = stage;
  }
}

function at<T>(stage: Stage, what: () => T): T {
  try {
    return what();
  } catch (cause) {
    throw new Failure(stage, cause);
  }
}

const during = async <T>(stage: Stage, what: () => Promise<T>): Promise<T> => what().catch((cause: unknown) => {
  throw cause instanceof Failure ? cause : new Failure(stage, cause);
});

/** Runs a case through all stages. */
export async function runCase(one: Case): Promise<Outcome> {
  try {
    const { graph, sets } = at('import', () => ({ graph: upgrade(readModel(modelOf(one))), sets: dataSetsOf(one) }));
    let gradient = false;
    for (const [k, set] of sets.entries()) gradient = (await runSet(graph, set, one.operator, k === 0)) || gradient;
    return { passed: true, gradient };
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    return { passed: false, stage: error.stage, message: error.message };
  }
}

async function runSet(graph: Graph, { inputs, outputs }: DataSet, op: string, differentiate: boolean): Promise<boolean> {
  const named = Object.fromEntries(inputs.map((t, i) => [graph.inputs[i]?.name ?? '', t]));
  const given = at('shapes', () => withBound(graph, named, (program) => {
    checkTypes(graph, program.graph, outputs);
    return program;
  }));
  const expanded = at('shapes', () => expandComposites(given.graph));
  const check = async (one: TypedGraph, then: (forward: Compiled) => Promise<boolean>): Promise<boolean> =>
    during('forward', () => withSession(one, async (forward) => {
      const found = await forward(given.feeds);
      graph.outputs.forEach(({ name }, k) => { requireClose(name, found[name]!, outputs[k]!); });
      return then(forward);
    }));
  const gradients = async (forward: Compiled): Promise<boolean> =>
    differentiate && during('gradient', () => checkGradients(graph, named, given, forward, op));
  if (expanded === given.graph) return check(given.graph, gradients);
  // What an operator expands into must compute the same as the whole; it stands in where there is no kernel for that.
  const whole = await check(given.graph, async () => true).catch((error: unknown) => {
    if (error instanceof Failure && noKernel.test(error.message)) return false;
    throw error;
  });
  await check(expanded, async () => true);
  return check(whole ? given.graph : expanded, gradients);
}

/** What ONNX Runtime says of operators, or of forms of them, that it does not run on the CPU. */
const noKernel = /Could not find an implementation|is not a registered function|are not supported\./;

/** The types inferred are those of the data, and what the file declares of them. */
function checkTypes(graph: Graph, { outputs: inferred }: TypedGraph, expected: readonly Tensor[]): void {
  graph.outputs.forEach(({ name, dtype, shape }, k) => {
    const found = inferred[k]!;
    const wanted = expected[k]!;
    if (found.dtype !== wanted.dtype || !sameShape(found.shape as readonly number[], wanted.shape)) {
      throw new Error(`output "${name}" is inferred as ${showType({ dtype: found.dtype, shape: found.shape as readonly number[] })}, not ${showType(wanted)}`);
    }
    const fits = shape === null || (shape.length === wanted.shape.length
      && shape.every((d, axis) => typeof d !== 'number' || d === wanted.shape[axis]));
    if (dtype !== wanted.dtype || !fits) throw new Error(`output "${name}" is not what the file declares`);
  });
}

/** ONNX's own tolerance for its backend tests. */
const [rtol, atol] = [1e-3, 1e-7];
/** What rounding leaves of a sum whose terms cancel, as a spectrum's zeros: relative to the largest of the output. */
const residue = 2 ** -21;

function requireClose(name: string, found: Tensor, expected: Tensor): void {
  const [got, wanted] = [numbersOf(found), numbersOf(expected)];
  let largest = 0;
  for (let i = 0; i < wanted.length; i++) if (Number.isFinite(wanted[i])) largest = Math.max(largest, Math.abs(wanted[i]!));
  const tolerance = isFloat(expected.dtype) ? { rtol, atol: atol + residue * largest } : { rtol: 0, atol: 0 };
  for (let i = 0; i < wanted.length; i++) {
    const [x, y] = [got[i]!, wanted[i]!];
    const close = Object.is(x, y) || x === y || Math.abs(x - y) <= tolerance.atol + tolerance.rtol * Math.abs(y);
    if (!close) throw new Error(`output "${name}" [${i}] is ${x}, not ${y}`);
  }
}

async function checkGradients(
  graph: Graph, inputs: Feeds, given: Program, forward: Compiled, op: string,
): Promise<boolean> {
  const random = testRandom(7);
  const names = given.graph.inputs.map(({ name }) => name);
  const built = withBound(graph, inputs, (program) => ({
    program, gradients: gradientProgram(program.graph, random),
  }));
  if (built.gradients === undefined) return false;
  const { wanted, seeds, graph: backward } = built.gradients;
  const point = nudged(op, names, given.feeds, random);
  const seeded = Object.fromEntries(Object.entries(seeds).map(([name, t]) => [seedName(name), t]));
  const found = backward.outputs.length === 0 ? {}
    : await withSession(backward, (run) => run({ ...point, ...seeded }));
  const wrong: string[] = [];
  for (const name of wanted) {
    const message = await disagreement(forward, point, name, found[gradientName(name)], seeds, random);
    if (message !== undefined) wrong.push(message);
  }
  if (wrong.length > 0) throw new Error(wrong.join('\n'));
  return true;
}
