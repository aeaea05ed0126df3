import { describe, expect, it } from 'vitest';
import { datasetOf, floatColumn } from '../data/index.ts';
import { type Dimension, type Graph, latestOpset } from '../graph/ir.ts';
import { taskFor } from './examples.ts';
import { bindShapes, exampleShape, parseShapes } from './shapes.ts';

const model = (inputs: Readonly<Record<string, readonly Dimension[] | null>>): Graph => ({
  name: 'shapes', opset: latestOpset, metadata: {}, initializers: new Map(), nodes: [], outputs: [],
  inputs: Object.entries(inputs).map(([name, shape]) => ({ name, dtype: 'float32', shape })),
});
const text = model({ ids: ['batch', 'sequence'], mask: ['batch', 'sequence'], image: ['batch', 3, null] });

describe('shapes given for inputs', () => {
  it('are read one by one or several in one text', () => {
    expect(parseShapes(['ids=B,128, mask=N,128', 'sequence=7', 'input:0=4,3'])).toEqual({
      'ids': ['B', 128], 'mask': ['N', 128], 'sequence': [7], 'input:0': [4, 3],
    });
    for (const wrong of ['ids', '=B,1', 'ids=', 'ids=B,', ',ids=B', 'ids=B,1,ids=B,2']) {
      expect(() => parseShapes([wrong]), wrong).toThrow(/not a shape|two shapes/);
    }
  });

  it('bind a dimension in all inputs that share it, by one of them or by its own name', () => {
    expect(bindShapes(text, { ids: ['B', 128] })).toEqual({ exampleShapes: { ids: [128], mask: [128] } });
    expect(bindShapes(text, { sequence: [9] })).toEqual({ exampleShapes: { ids: [9], mask: [9] } });
    expect(bindShapes(text, { image: [8, 3, 5], sequence: [2] })).toEqual({
      batchSize: 8, exampleShapes: { image: [3, 5], ids: [2], mask: [2] },
    });
  });

  it('stand for inputs without a declared shape', () => {
    expect(bindShapes(model({ x: null }), { x: ['B', 3, 4] }).exampleShapes).toEqual({ x: [3, 4] });
  });

  it('are refused with a fix where they do not fit', () => {
    expect(() => bindShapes(text, { idz: ['B', 1] })).toThrow(/unknown input "idz"[^]*did you mean "ids"/);
    expect(() => bindShapes(text, { ids: ['B', 1], mask: ['B', 2] })).toThrow(/two sizes for the dimension "sequence"/);
    expect(() => bindShapes(text, { ids: [4, 1], mask: [5, 1] })).toThrow(/two sizes for the batch/);
    expect(() => bindShapes(text, { ids: ['B', 1, 2] })).toThrow(/wrong number of dimensions/);
    for (const bad of [['B', 0], ['B', 1.5], ['B', 'x'], [-1, 2]]) {
      expect(() => bindShapes(text, { ids: bad })).toThrow(/not a shape/);
    }
  });

  it('follow for an input from those of others', () => {
    expect(exampleShape({ model: text, exampleShapes: { ids: [6] } }, 'mask')).toEqual([6]);
    expect(() => exampleShape({ model: text }, 'image')).toThrow(/--shape image=B,3,128/);
  });

  it('must agree with the data', () => {
    const rows = floatColumn(new Float32Array(8), [4]);
    const data = datasetOf({ name: 'rows', features: new Map([['x', rows]]), labels: rows });
    const task = { model: model({ x: ['batch', 'width'] }), loss: 'mse' } as const;
    expect(taskFor(task, data).exampleShapes).toEqual({ x: [4] });
    expect(taskFor(task, data, { bindings: { width: [4] } }).exampleShapes).toEqual({ x: [4] });
    expect(() => taskFor(task, data, { bindings: { x: ['B', 5] } })).toThrow(/another shape than was given/);
  });
});
