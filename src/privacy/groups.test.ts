import { describe, expect, it } from 'vitest';
import { flatGroup, groupsOf, parametersOf, sensitivity } from './groups.ts';

describe('clipping groups', () => {
  it('have the sensitivity √Σ C²', () => {
    expect(sensitivity(flatGroup(['a', 'b'], 0.1))).toBe(0.1);
    const groups = groupsOf([
      { name: 'x', norm: 3, parameters: ['a'] },
      { name: 'y', norm: 4, parameters: ['b', 'c'] },
    ]);
    expect(sensitivity(groups)).toBe(5);
    expect(parametersOf(groups)).toEqual(['a', 'b', 'c']);
  });

  it('are copies that cannot change', () => {
    const parameters = ['a'];
    const groups = flatGroup(parameters, 1);
    parameters.push('b');
    expect(parametersOf(groups)).toEqual(['a']);
    expect(Object.isFrozen(groups) && groups.every((g) => Object.isFrozen(g) && Object.isFrozen(g.parameters))).toBe(
      true,
    );
  });

  it('refuse what cannot be clipped', () => {
    expect(() => groupsOf([])).toThrow('no clipping group');
    for (const norm of [0, -1, NaN, Infinity])
      expect(() => flatGroup(['a'], norm)).toThrow('clipping norm out of range');
    expect(() => flatGroup([], 1)).toThrow('without parameters');
    expect(() => flatGroup(['a', 'a'], 1)).toThrow('in two clipping groups');
    expect(() =>
      groupsOf([
        { name: 'x', norm: 1, parameters: ['a'] },
        { name: 'y', norm: 1, parameters: ['a'] },
      ]),
    ).toThrow('"x" and "y"');
    expect(() =>
      groupsOf([
        { name: 'x', norm: 1, parameters: ['a'] },
        { name: 'x', norm: 1, parameters: ['b'] },
      ]),
    ).toThrow('of one name');
  });
});
