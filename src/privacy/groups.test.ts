import { describe, expect, it } from 'vitest';
import { type Group, flatGroup, groupsOf, parametersOf, samePartition, sensitivity, withNorms } from './groups.ts';

describe('clipping groups', () => {
  it('have the sensitivity √Σ C²', () => {
    expect(sensitivity(flatGroup(['a', 'b'], 0.1, 2))).toBe(0.1);
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['a'], size: 3 },
      { name: 'y', norm: 4, parameters: ['b', 'c'], size: 3 },
    ]);
    expect(sensitivity(groups)).toBe(5);
    expect(parametersOf(groups)).toEqual(['a', 'b', 'c']);
  });

  it('are copies that cannot change', () => {
    const parameters = ['a'];
    const groups = flatGroup(parameters, 1, 1);
    parameters.push('b');
    expect(parametersOf(groups)).toEqual(['a']);
    expect(Object.isFrozen(groups) && groups.every((g) => Object.isFrozen(g) && Object.isFrozen(g.parameters))).toBe(
      true,
    );
  });

  it('take other thresholds, and stay one partition', () => {
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['a'], size: 5 },
      { name: 'y', norm: 4, parameters: ['b', 'c'], size: 7 },
    ]);
    const other = withNorms(groups, [1, 2]);
    expect(other.map(({ norm }) => norm)).toEqual([1, 2]);
    expect(samePartition(groups, other)).toBe(true);
    const [x, y] = other;
    const changed = [
      [x, { ...y, name: 'z' }],
      [x, { ...y, parameters: ['c', 'b'] }],
      [x, { ...y, parameters: ['b'] }],
      [x, { ...y, size: 8 }],
      [y, x],
      [x],
    ] as Group[][];
    for (const one of changed) {
      expect(samePartition(groups, one)).toBe(false);
      expect(samePartition(one, groups)).toBe(false);
    }
    for (const norms of [[1], [1, 2, 3]]) expect(() => withNorms(groups, norms)).toThrow('differ in number');
    for (const norm of [0, NaN, Infinity]) expect(() => withNorms(groups, [1, norm])).toThrow('clipping norm out of range');
  });

  it('refuse what cannot be clipped', () => {
    expect(() => groupsOf([])).toThrow('no clipping group');
    for (const norm of [0, -1, NaN, Infinity])
      expect(() => flatGroup(['a'], norm, 1)).toThrow('clipping norm out of range');
    for (const size of [0, 1.5, NaN]) expect(() => flatGroup(['a'], 1, size)).toThrow('size of a clipping group');
    expect(() => flatGroup([], 1, 1)).toThrow('without parameters');
    expect(() => flatGroup(['a', 'a'], 1, 2)).toThrow('in two clipping groups');
    expect(() =>
      groupsOf([
        { name: 'x', norm: 1, parameters: ['a'], size: 3 },
        { name: 'y', norm: 1, parameters: ['a'], size: 3 },
      ]),
    ).toThrow('"x" and "y"');
    expect(() =>
      groupsOf([
        { name: 'x', norm: 1, parameters: ['a'], size: 3 },
        { name: 'x', norm: 1, parameters: ['b'], size: 3 },
      ]),
    ).toThrow('of one name');
  });
});
