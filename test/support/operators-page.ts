import { newestOpset, oldestOpset } from '../../src/graph/decode.ts';
import { int } from '../../src/graph/ir.ts';
import { changes, neededBy } from '../../src/graph/upgrades.ts';
import { leading } from '../../src/ops/batch.ts';
import { type Composite, isComposite } from '../../src/ops/composite.ts';
import type { Operator } from '../../src/ops/operator.ts';
import { refusals } from '../../src/ops/refusals.ts';
import { noGradientFlows } from '../../src/ops/rules.ts';
import { families } from '../../src/ops/table.ts';
import { type DType, type Shape, zeros } from '../../src/tensor/tensor.ts';
import { type Sample, batchResult, build, gradientContext } from './operator-sample.ts';

type Entry = Operator | Composite;

/** The page docs/operators.md: what the operator table says of itself. */
export function operatorsPage(): string {
  const sections = Object.entries(families).map(([name, family]) =>
    [`## ${title(name)}`, '', ...table(['operator', 'gradient', 'as a parameter', 'notes'],
      Object.entries(family).sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, entry]: [string, Entry]) =>
        [key, gradientOf(entry), parametersOf(key, entry), notesOf(key, entry)]))].join('\n'));
  const count = Object.values(families).reduce((sum, family) => sum + Object.keys(family).length, 0);
  return [
    '# Operators', '',
    `${count} operators are known, in files of operator sets ${oldestOpset} to ${newestOpset}; older forms are rewritten to the`,
    'newest when a file is read. `ghostgrad explain MODEL` says which of a model\'s nodes are not supported, and why.',
    'This page is written from the operator table by `npm run docs:operators`, and a test fails when it is stale.', '',
    '**Gradient**: whether gradients flow back through the operator. *By expansion*: where a gradient flows the node is',
    'replaced by other operators; elsewhere it stays whole. **As a parameter**: which inputs may be weights that are trained,',
    'and how their per-example gradients are had: *outer* (a product over positions: ghost norms), *convolution* (ghost',
    'norms of patches), *gather* (rows of a table), *broadcast* (biases and scales), *opaque* (formed for each example).',
    'Anywhere else a weight may stand before it meets the data: the gradient of what is computed from it is formed for',
    'each example, and carried back to it.', '',
    ...sections.flatMap((section) => [section, '']),
    '## Refused', '',
    'These are refused on purpose; `*` stands for any ending. Whatever is neither here nor above is merely unknown.', '',
    ...table(['operator', 'why', 'what to do instead'],
      Object.entries(refusals).map(([key, { reason, fix }]) => [key.replaceAll('*', '\\*'), reason, fix])),
    '',
  ].join('\n');
}

const title = (name: string): string => name[0]!.toUpperCase() + name.slice(1);

const table = (head: readonly string[], rows: readonly (readonly string[])[]): readonly string[] =>
  [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`);

function gradientOf(entry: Entry): string {
  if (isComposite(entry)) return 'by expansion';
  if ('reason' in entry.gradient) return `no: ${entry.gradient.reason}`;
  if (entry.gradient === noGradientFlows) return 'none: constant, or constant between steps';
  return entry.obstacle === undefined ? 'yes' : 'yes, but for some attributes';
}

function parametersOf(key: string, entry: Entry): string {
  if (isComposite(entry)) return 'by expansion';
  if (entry.parameter === undefined) return '';
  const kinds = kindsOf(key, entry.untrained ?? []);
  const byKind = [...new Set(kinds.values())].map((kind) =>
    `${kind} (input ${[...kinds].flatMap(([index, its]) => (its === kind ? [index] : [])).join(', ')})`);
  return byKind.length > 0 ? byKind.join(', ') : 'yes';
}

function notesOf(key: string, entry: Entry): string {
  const change = changes[key];
  const introduced = key.includes(':') ? 0 : neededBy({ op: key, domain: '', inputs: [] });
  const untrained = entry.untrained?.join(', ');
  return [
    ...(introduced > 0 ? [`from opset ${introduced}`] : []),
    ...(change !== undefined ? [`forms before opset ${change.below} are rewritten`] : []),
    ...(untrained !== undefined ? [`input ${untrained}: never trained`] : []),
    ...(!isComposite(entry) && entry.view !== undefined ? ['weights pass through unchanged'] : []),
    ...(!isComposite(entry) && entry.fold !== undefined ? ['computed ahead from constants'] : []),
  ].join('; ');
}

/** Operands that a rule for parameters is tried with: shapes of data have three rows. */
interface Trial {
  readonly data: readonly Shape[];
  readonly weights: readonly Shape[];
  readonly dtypes?: readonly DType[];
  readonly attributes?: Sample['attributes'];
}

const plain: Trial = { data: [[3, 4], [3, 4]], weights: [[4], [4]] };
const product: Trial = { data: [[3, 2, 4], [3, 4, 2]], weights: [[5, 4], [4, 5]] };
const norm = (inputs: number, shape: Shape = [3, 4, 5]): Trial =>
  ({ data: [shape], weights: Array.from({ length: inputs }, () => [4]), attributes: { num_groups: int(2) } });

/** By operator, where two operands of one shape do not fit. */
const trials: Readonly<Record<string, Trial>> = {
  'MatMul': product, 'com.microsoft:FusedMatMul': product,
  'Gemm': { data: [[3, 4]], weights: [[0], [4, 5], [5]] },
  'Conv': { data: [[3, 2, 6]], weights: [[0], [4, 2, 3], [4]] },
  'ConvTranspose': { data: [[3, 2, 6]], weights: [[0], [2, 4, 3], [4]] },
  'Gather': { data: [[0], [3, 5]], weights: [[7, 4]], dtypes: ['float32', 'int64'] },
  'LayerNormalization': norm(3, [3, 4]), 'GroupNormalization': norm(3), 'InstanceNormalization': norm(3),
  'BatchNormalization': norm(5),
  'Where': { data: [[3, 4], [3, 4], [3, 4]], weights: [[0], [4], [4]], dtypes: ['bool'] },
  'Clip': { data: [[3, 4]], weights: [[], [], []] },
};

/** The kind of use that the operator's rule makes of each input, as far as it takes one as a parameter. */
function kindsOf(key: string, untrained: readonly number[]): ReadonlyMap<number, string> {
  const trial = trials[key] ?? plain;
  const most = Math.max(trial.data.length, trial.weights.length);
  const kinds = new Map<number, string>();
  for (let index = 0; index < most; index++) {
    const kind = Array.from({ length: most }, (_, i) => kindOf(key, trial, index, most - i)).find((found) => found !== undefined);
    if (kind !== undefined && !untrained.includes(index)) kinds.set(index, kind);
  }
  return kinds;
}

/** What the rule says of input `index` among `count`, the others being data or weights; undefined where it takes none. */
function kindOf(key: string, { data, weights, dtypes = [], attributes = {} }: Trial, index: number, count: number): string | undefined {
  const inputs = Array.from({ length: count }, (_, i) => {
    const shape = i === index ? weights[i] : data[i] ?? weights[i];
    const dtype = dtypes[i] ?? 'float32';
    return shape && { value: zeros(dtype, shape), batch: i !== index && data[i] !== undefined ? leading : undefined };
  });
  if (inputs[index] === undefined || dtypes[index] === 'bool' || dtypes[index] === 'int64') return undefined;
  const sample: Sample = { op: key, inputs, attributes };
  try {
    const built = build(sample);
    const result = batchResult(built, sample);
    if ('violation' in result) return undefined;
    return built.operator.parameter?.({
      ...gradientContext(built, sample, [], [0]), index,
      inputBatch: inputs.map((operand) => operand?.batch), outputBatch: built.node.outputs.map((_, k) => result[k]),
    }).kind;
  } catch {
    // Operands that do not fit: the input is no parameter, or the operator takes fewer.
    return undefined;
  }
}
