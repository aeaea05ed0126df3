import { describe, expect, it } from 'vitest';
import { GhostgradError } from '../errors.ts';
import { allocations } from '../privacy/index.ts';
import { type RecipeInput, resolveRecipe } from './recipe.ts';

const least: RecipeInput = {
  model: 'cnn-tanh',
  data: { train: 'mnist:train' },
  privacy: { epsilon: 3, delta: 1e-5 },
  training: { batchSize: 512, epochs: 40 },
};

/** The least recipe with the values at some paths replaced (undefined: left out). */
function changed(changes: Readonly<Record<string, unknown>>): unknown {
  const recipe = structuredClone(least) as unknown as Record<string, unknown>;
  for (const [path, value] of Object.entries(changes)) {
    const keys = path.split('.');
    const last = keys.pop() ?? '';
    let at = recipe;
    for (const key of keys) at = (at[key] ??= {}) as Record<string, unknown>;
    if (value === undefined) delete at[last];
    else at[last] = value;
  }
  return recipe;
}

function refusal(changes: Readonly<Record<string, unknown>>): GhostgradError['parts'] {
  try {
    resolveRecipe(changed(changes), 'r.yaml');
  } catch (error) {
    if (error instanceof GhostgradError) return error.parts;
    throw error;
  }
  throw new Error(`accepted: ${JSON.stringify(changes)}`);
}

describe('resolveRecipe', () => {
  it('fills in every default', () => {
    expect(resolveRecipe(least)).toEqual({
      ...least,
      loss: 'cross-entropy',
      trainable: 'all',
      privacy: {
        epsilon: 3,
        delta: 1e-5,
        accountant: 'auto',
        sampling: 'poisson',
        neighbors: 'add-remove',
        noise: 'discrete',
        unit: 'example',
      },
      clipping: {
        style: 'flat',
        groups: {},
        norm: 1,
        function: 'abadi',
        gamma: 0.01,
        threshold: 'fixed',
        allocation: 'global',
      },
      training: {
        batchSize: 512,
        epochs: 40,
        schedule: 'constant',
        optimizer: { name: 'adam', learningRate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weightDecay: 0, noiseCorrection: false, noiseFloor: 0.03 },
      },
      performance: {
        mode: 'book-keeping',
        optimizeFor: 'time',
        memoryMiB: 'auto',
        microBatch: 'auto',
        threads: 'auto',
        features: 'auto',
        checkpointEvery: 'auto',
      },
    });
  });

  it('keeps a resolved recipe as it is', () => {
    const once = resolveRecipe(least);
    expect(resolveRecipe(structuredClone(once))).toEqual(once);
  });

  it('takes every form of model, trainable parameters, noise and length', () => {
    for (const changes of [
      { model: 'my/model.onnx' },
      { model: { path: 'model.bin', output: 'logits' } },
      { model: { name: 'mlp', hidden: [8] } },
      { trainable: ['*.bias'] },
      { loss: 'output:losses' },
      { 'privacy.epsilon': undefined, 'privacy.noiseMultiplier': 1.2 },
      { 'training.epochs': undefined, 'training.steps': 7 },
      { 'training.epochs': 0.5 },
      { 'privacy.epsilon': [1, 0.5] },
      { 'data.size': 60000 },
      ...['constant', 'linear', 'cosine', 'exponential'].map((name) => ({ 'training.schedule': { name, warmup: 0.1 } })),
      { 'training.schedule': { name: 'step', every: 0.25, factor: 0.5, warmup: 10 } },
      { 'training.average': { ema: 0.999 } },
      { 'training.average': { last: 20 } },
      { 'training.denoise': 'james-stein' },
      { 'training.optimizer': { name: 'lamb', noiseCorrection: true, noiseFloor: 0.1 } },
      { 'training.seed': 7 },
      { 'training.seed': 'seven' },
      { 'privacy.sampling': 'full-batch', 'training.batchSize': undefined },
      { output: 'runs/x' },
      ...['flat', 'per-layer', 'per-parameter', 'per-block'].map((style) => ({ 'clipping.style': style })),
      { 'clipping.style': 'groups', 'clipping.groups': { a: ['x.*'], b: { patterns: ['y.*'] }, c: { patterns: ['z'], norm: 2 } } },
      ...allocations.map((allocation) => ({ 'clipping.allocation': allocation })),
      { 'clipping.threshold': { adaptive: {} } },
      { 'clipping.threshold': { adaptive: { quantile: 0.5, initial: 0.1, rescaleTo: 1 } } },
    ])
      expect(() => resolveRecipe(changed(changes))).not.toThrow();
  });

  it('fills in how thresholds adapt', () => {
    expect(resolveRecipe(changed({ 'clipping.threshold': { adaptive: { quantile: 0.7 } } })).clipping.threshold).toEqual({
      adaptive: { quantile: 0.7, learningRate: 0.2, budgetFraction: 0.01, initial: null, rescaleTo: null },
    });
  });

  it('takes options of a model beside its name or under options', () => {
    const under = changed({ model: { name: 'mlp', options: { hidden: [8] } } });
    expect(resolveRecipe(under).model).toEqual({ name: 'mlp', hidden: [8] });
  });

  it('trains without norms when the recipe wants no privacy', () => {
    expect(resolveRecipe(changed({ privacy: 'none' })).performance.mode).toBe('non-private');
  });

  it.each([
    ['epsilonn', 'privacy.epsilonn', 3, 'privacy', 'did you mean "epsilon"?'],
    ['modle', 'modle', 'mlp', 'r.yaml', 'did you mean "model"?'],
    ['batchsize', 'training.batchsize', 3, 'training', 'did you mean "batchSize"?'],
    ['treads', 'performance.treads', 3, 'performance', 'did you mean "threads"?'],
    ['quantle', 'clipping.threshold.adaptive.quantle', 0.5, 'clipping.threshold.adaptive', 'did you mean "quantile"?'],
    ['pattern', 'clipping.groups.a.pattern', ['x'], 'clipping.groups.a', 'did you mean "patterns"?'],
  ])('refuses the unknown key %s by name and suggests the nearest', (key, path, value, where, fix) => {
    const parts = refusal({ [path]: value });
    expect(parts.what).toBe(`unknown option "${key}"`);
    expect(parts.where).toContain(where);
    expect(parts.fix).toBe(fix);
  });

  it.each([
    ['privacy.epsilon', 0],
    ['privacy.epsilon', -1],
    ['privacy.epsilon', Infinity],
    ['privacy.epsilon', NaN],
    ['privacy.epsilon', 'three'],
    ['privacy.epsilon', []],
    ['privacy.epsilon', [1, 0]],
    ['privacy.delta', 0],
    ['privacy.delta', 1],
    ['privacy.delta', -1e-5],
    ['privacy.delta', '1e-5'],
    ['privacy.noiseMultiplier', 0],
    ['clipping.norm', 0],
    ['clipping.norm', Infinity],
    ['clipping.gamma', -1],
    ['clipping.style', 'per-layr'],
    ['clipping.allocation', 'equal'],
    ['clipping.groups', { a: [] }],
    ['clipping.groups', { a: 'x' }],
    ['clipping.groups', { a: { patterns: ['x'], norm: 0 } }],
    ['clipping.threshold', 'adaptive'],
    ['clipping.threshold', 0.5],
    ...['quantile', 'budgetFraction'].flatMap((key) => [0, 1, -1, NaN].map((value): [string, unknown] =>
      ['clipping.threshold', { adaptive: { [key]: value } }])),
    ...['learningRate', 'initial', 'rescaleTo'].flatMap((key) => [0, -1, NaN, Infinity].map((value): [string, unknown] =>
      ['clipping.threshold', { adaptive: { [key]: value } }])),
    ['training.batchSize', 0],
    ['training.batchSize', -5],
    ['training.epochs', 0],
    ['training.steps', 1.5],
    ['training.optimizer', 'sgd'],
    ['data.size', 0],
    ['data.train', 3],
    ['performance.threads', 0],
    ['performance.microBatch', 'big'],
    ['privacy.neighbors', 'both'],
    ['loss', 'entropy'],
    ['trainable', []],
    ['clipping.function', 'abbadi'],
    ['clipping.function', { expression: 'R / (n' }],
    ['clipping.function', { expresion: 'R / n' }],
    ['model', 3],
    ['model', {}],
  ])('refuses %s: %s and says where', (path, value) => {
    const parts = refusal({ [path]: value });
    expect(parts.where).toContain('r.yaml');
    expect(parts.where).toContain(path);
    expect(parts.expected).toBeTruthy();
  });

  it.each([['model'], ['data'], ['data.train'], ['privacy'], ['privacy.delta'], ['training'], ['training.batchSize']])(
    'asks for %s when it is missing, with an example',
    (path) => {
      const parts = refusal({ [path]: undefined });
      expect(parts.what).toBe('missing option');
      expect(parts.where).toBe(`r.yaml: ${path}`);
      expect(parts.fix).toMatch(/^e\.g\. /);
    },
  );

  it.each([
    ['epsilon and noiseMultiplier are both given', { 'privacy.noiseMultiplier': 1 }],
    ['neither epsilon nor noiseMultiplier is given', { 'privacy.epsilon': undefined }],
    ['epochs and steps are both given', { 'training.steps': 100 }],
    ['neither epochs nor steps is given', { 'training.epochs': undefined }],
    ['clipping by named groups without groups', { 'clipping.style': 'groups' }],
    ['clipping groups are named', { 'clipping.groups': { a: ['*'] } }],
    ['clipping groups are named', { 'clipping.style': 'per-layer', 'clipping.groups': { a: ['*'] } }],
    ['mode non-private in a private run', { 'performance.mode': 'non-private' }],
    ['mode per-layer clips each layer by itself', { 'performance.mode': 'per-layer' }],
    ['mode per-layer clips each layer by itself', { 'performance.mode': 'per-layer', 'clipping.style': 'per-block' }],
  ])('refuses contradictions: %s', (what, changes) => {
    expect(refusal(changes)).toMatchObject({
      what: expect.stringContaining(what) as string,
      where: expect.stringContaining('r.yaml') as string,
    });
  });

  it.each([
    ['privacy.unit', 'person'],
  ])('knows that %s: %j is not available yet', (path, value) => {
    const parts = refusal({ [path]: value });
    expect(parts).toMatchObject({ what: 'not available yet', where: `r.yaml: ${path}` });
    expect(parts.expected).toBeTruthy();
  });

  it('takes a budget of bytes, time or memory to plan a step for', () => {
    for (const optimizeFor of ['time', 'memory', { budget: 5e8 }]) {
      expect(resolveRecipe(changed({ 'performance.optimizeFor': optimizeFor })).performance.optimizeFor).toEqual(optimizeFor);
    }
    expect(refusal({ 'performance.optimizeFor': { budget: 0 } }).where).toContain('performance.optimizeFor');
    expect(refusal({ 'performance.optimizeFor': 'space' }).where).toContain('performance.optimizeFor');
  });

  it('suggests the nearest model, optimizer and option of an optimizer', () => {
    expect(refusal({ model: 'cnn-than' })).toMatchObject({
      what: 'unknown model "cnn-than"',
      fix: 'did you mean "cnn-tanh"?',
    });
    expect(refusal({ 'clipping.function': 'abbadi' }).fix).toBe('did you mean "abadi"?');
    expect(refusal({ 'clipping.function': { expression: 'R / gama' } }).fix).toBe('did you mean "gamma"?');
    expect(refusal({ 'training.optimizer': { name: 'adma' } }).fix).toBe('did you mean "adam"?');
    expect(refusal({ 'training.optimizer': { name: 'sgd', learningrate: 1 } }).fix).toBe(
      'did you mean "learningRate"?',
    );
    expect(refusal({ 'training.schedule': 'cosin' }).fix).toBe('did you mean "cosine"?');
    expect(refusal({ model: { path: 'a.onnx', outptu: 'x' } }).fix).toBe('did you mean "output"?');
  });

  it('refuses what is no mapping', () => {
    for (const raw of [null, 3, 'recipe', [], undefined])
      expect(() => resolveRecipe(raw)).toThrow('a recipe is a mapping');
  });
});
