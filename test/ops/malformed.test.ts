import { expect, it } from 'vitest';
import { GhostgradError } from '../../src/errors.ts';
import { type Graph, latestOpset } from '../../src/graph/ir.ts';
import { specialise } from '../../src/graph/specialise.ts';
import { semantics } from '../../src/ops/table.ts';
import { int64 } from '../../src/tensor/tensor.ts';

const single = (op: string, inputs: readonly string[]): Graph => ({
  name: 'malformed', opset: latestOpset, metadata: {},
  initializers: new Map([['a', int64([3])], ['negative', int64([-9])]]), literals: new Set(['a', 'negative']),
  inputs: [], outputs: [{ name: 'y', dtype: 'int64', shape: null }],
  nodes: [{ op, domain: '', name: 'node', inputs, outputs: ['y'], attributes: {} }],
});

it.each<[string, readonly string[]]>([
  ...['Add', 'Sub', 'Mul', 'Div', 'Mod', 'Equal', 'Less'].flatMap((op): [string, readonly string[]][] =>
    [[op, ['a']], [op, ['a', 'a', 'a']]]),
  ['Max', []], ['ConstantOfShape', ['negative']], ['Expand', ['a', 'negative']],
])('%s of %j is refused where it stands', (op, inputs) => {
  const act = () => specialise(single(op, inputs), {}, semantics);
  expect(act).toThrow(GhostgradError);
  expect(act).toThrow(/"node"/);
});
