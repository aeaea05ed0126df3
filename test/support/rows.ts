import { type Tensor, float32, int64, isFloat, sizeOf, tensor } from '../../src/tensor/tensor.ts';
import { expandComposites } from '../../src/ops/expand.ts';
import { type Task, atBatchSize } from '../../src/training/compile.ts';
import { withSession } from './operator-sample.ts';
import { testRandom } from './random-network.ts';

/** Values for an input: small whole numbers, or reals. Masks of attention are ones. */
function drawn(random: () => number, name: string, { dtype, shape }: Pick<Tensor, 'dtype' | 'shape'>): Tensor {
  const count = sizeOf(shape);
  if (isFloat(dtype)) return float32(Array.from({ length: count }, () => 2 * random() - 1), shape);
  const values = Array.from({ length: count }, () => (name.includes('mask') ? 1 : Math.floor(random() * 2)));
  return dtype === 'int32' ? tensor('int32', shape, Int32Array.from(values)) : int64(values, shape);
}

/**
 * Whether the loss of an example, as the engine computes it, changes with the other examples of its batch or with how
 * many there are.
 */
export async function dependsOnOtherRows(task: Task): Promise<boolean> {
  const losses = async (rows: number, order: (row: number) => number): Promise<number[]> => {
    const { graph, loss } = atBatchSize(task, rows);
    // The engine has no kernel of an operator set newer than that of the graph.
    const kept = { ...expandComposites(graph), outputs: [{ name: loss, ...graph.types.get(loss)! }] };
    const feeds = Object.fromEntries(graph.inputs.map(({ name }) => {
      const { dtype, shape } = graph.types.get(name)!;
      const each = Array.from({ length: rows }, (_, row) => {
        const random = testRandom(1000 + 77 * order(row));
        random();
        return [...drawn(random, name, { dtype, shape: shape.with(0, 1) }).data as Iterable<number | bigint>];
      }).flat();
      return [name, isFloat(dtype) ? float32(each as number[], shape) : dtype === 'int32' ? tensor('int32', shape, Int32Array.from(each as number[])) : int64(each, shape)];
    }));
    return withSession(kept, async (run) => Array.from((await run(feeds))[loss]!.data as Float32Array));
  };
  const base = await losses(4, (row) => row);
  const differ = (found: readonly number[], from: (row: number) => number): boolean =>
    found.some((loss, row) => Math.abs(loss - base[from(row)]!) > 1e-4 * (1 + Math.abs(loss)) || Number.isNaN(loss) !== Number.isNaN(base[from(row)]!));
  const others = await losses(4, (row) => (row === 0 ? 0 : row + 10));
  if (differ([others[0]!], () => 0)) return true;
  const turned = await losses(4, (row) => 3 - row);
  if (differ(turned, (row) => 3 - row)) return true;
  return differ(await losses(2, (row) => row + 1), (row) => row + 1);
}

