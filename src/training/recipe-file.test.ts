import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/support/temp.ts';
import { parseSpec, parseYaml, readRecipeFile, recipeText, withSettings } from './recipe-file.ts';
import { resolveRecipe } from './recipe.ts';

describe('recipe files', () => {
  it('are YAML, and read again what recipeText wrote', () => {
    const { write } = temporaryFolder();
    const recipe = resolveRecipe({
      model: { name: 'mlp', hidden: [8] },
      data: { train: { path: 'a.csv', label: 'y' } },
      privacy: { epsilon: 1.5, delta: 1e-7 },
      training: { batchSize: 8, steps: 3 },
      output: 'runs/a',
    });
    expect(resolveRecipe(readRecipeFile(write('r.yaml', recipeText(recipe))))).toEqual(recipe);
  });

  it('are refused with file, line and column when they are not YAML', () => {
    const { write } = temporaryFolder();
    const path = write('r.yaml', 'model: mlp\ndata: {train: [\nx: 1');
    expect(() => readRecipeFile(path)).toThrow(`not valid YAML (${path}, line `);
    expect(() => readRecipeFile(write('twice.yaml', 'model: a\nmodel: b\n'))).toThrow(/line 2, column 1/);
    expect(() => readRecipeFile(write('list.yaml', '- model\n'))).toThrow('a recipe is a mapping');
    expect(() => readRecipeFile(write('empty.yaml', ''))).toThrow('a recipe is a mapping');
  });

  it('are refused when they cannot be read', () => {
    const { folder } = temporaryFolder();
    expect(() => readRecipeFile(`${folder}/none.yaml`)).toThrow('no such file');
    expect(() => readRecipeFile(folder)).toThrow('a folder');
  });
});

describe('settings', () => {
  const raw = { model: 'mlp', training: { epochs: 3, batchSize: 8 } };

  it('replace, add and take away values, which are YAML', () => {
    expect(
      withSettings(raw, [
        'training.epochs=',
        'training.steps=10',
        'data.train={path: a.csv, label: y}',
        'privacy.delta=1e-5',
      ]),
    ).toEqual({
      model: 'mlp',
      training: { batchSize: 8, steps: 10 },
      data: { train: { path: 'a.csv', label: 'y' } },
      privacy: { delta: 1e-5 },
    });
    expect(withSettings(raw, ['output=a=b'])).toMatchObject({ output: 'a=b' });
    expect(raw.training.epochs).toBe(3);
  });

  it('are refused without a path or a value, and where a path leads nowhere', () => {
    for (const setting of ['training.epochs', '=3', 'training..epochs=3', '.=1']) {
      expect(() => withSettings(raw, [setting])).toThrow('not a setting');
    }
    expect(() => withSettings(raw, ['model.hidden=3'])).toThrow(
      'a setting leads into a value that has no keys (--set model.hidden)',
    );
    expect(() => withSettings(raw, ['model={'])).toThrow('not valid YAML (--set model');
  });

  it('cannot reach the prototype of anything', () => {
    const set = withSettings(raw, ['__proto__.polluted=1', 'constructor.prototype.polluted=1']);
    expect(Object.getPrototypeOf(set)).toBe(Object.prototype);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
    expect(() => resolveRecipe(set)).toThrow('unknown option');
  });
});

describe('data specs on a command line', () => {
  it('are mappings in braces, else text as it is', () => {
    expect(parseSpec('mnist:train', '--data')).toBe('mnist:train');
    expect(parseSpec('C:\\data: new.csv', '--data')).toBe('C:\\data: new.csv');
    expect(parseSpec('{path: a.csv, label: y}', '--data')).toEqual({ path: 'a.csv', label: 'y' });
    expect(() => parseSpec('{path: a.csv', '--data')).toThrow('--data, line 1');
  });

  it('hold no more aliases than a person would write', () => {
    const bomb = [
      'a: &a [x,x,x,x,x,x,x,x,x]',
      ...[...'bcdefgh'].map((c, i) => `${c}: &${c} [${Array(9).fill(`*${'abcdefg'[i]}`).join()}]`),
    ].join('\n');
    expect(() => parseYaml(bomb, 'r.yaml')).toThrow();
  });
});
