import boundaries from 'eslint-plugin-boundaries';
import { defineConfig } from 'eslint/config';
import tseslint from 'typescript-eslint';

/**
 * The layers, each with those that it may import. Imports point down this table, as ARCHITECTURE.md shows it; the
 * files in src/ itself that every layer may use are `base`.
 */
const layers = {
  tensor: [],
  random: ['tensor'],
  graph: ['tensor'],
  ops: ['tensor', 'graph'],
  autodiff: ['tensor', 'graph', 'ops'],
  privacy: ['tensor', 'random'],
  clipping: ['tensor', 'graph', 'ops', 'autodiff'],
  optimizers: ['tensor', 'privacy'],
  runtime: ['tensor', 'graph'],
  models: ['tensor', 'random', 'graph', 'ops'],
  data: ['tensor', 'random'],
  distributed: ['tensor'],
};
const lower = Object.keys(layers);
const faces = {
  training: lower,
  bench: [...lower, 'training'],
  audit: [...lower, 'training'],
  report: [...lower, 'training', 'bench'],
  cli: [...lower, 'training', 'bench', 'audit', 'report'],
};
const all = { ...layers, ...faces };

const base = ['errors', 'suggest', 'parse', 'files', 'lock'].map((name) => `src/${name}.ts`);
const toBase = { to: { file: { categories: 'base' } } };
const toLayers = (types) => types.map((type) => ({ to: { element: { type } } }));

export default defineConfig(
  { ignores: ['dist/', 'coverage/', 'runs/'] },
  {
    files: ['**/*.ts', '**/*.js'],
    extends: [tseslint.configs.recommendedTypeChecked],
    languageOptions: { parserOptions: { projectService: { allowDefaultProject: ['eslint.config.js'] } } },
    linterOptions: { reportUnusedDisableDirectives: 'error', noInlineConfig: true },
    rules: {
      '@typescript-eslint/consistent-type-imports': [
        'error',
        { fixStyle: 'inline-type-imports', disallowTypeAnnotations: false },
      ],
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      // An async function may implement an asynchronous interface without having to wait for anything.
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_', varsIgnorePattern: '^_' }],
      // No object here uses `this`: an interface's methods are functions to be passed around.
      '@typescript-eslint/unbound-method': 'off',
      'eqeqeq': 'error',
      'no-var': 'error',
      'prefer-const': 'error',
      'no-restricted-imports': [
        'error',
        { patterns: [{ group: ['onnxruntime-*'], message: 'only src/runtime/ knows ONNX Runtime' }] },
      ],
    },
  },
  { files: ['*.config.js'], extends: [tseslint.configs.disableTypeChecked] },
  {
    files: ['**/*.test.ts', 'test/**'],
    // Matchers such as expect.any() are of type any.
    rules: { '@typescript-eslint/no-unsafe-assignment': 'off' },
  },
  { files: ['src/runtime/**', 'test/**', '**/*.test.ts'], rules: { 'no-restricted-imports': 'off' } },
  {
    files: ['src/**/*.ts', 'src/**/*.js'],
    ignores: ['**/*.test.ts'],
    plugins: { boundaries },
    settings: {
      'boundaries/elements': Object.keys(all).map((type) => ({ type, pattern: `src/${type}`, partialMatch: false })),
      'boundaries/files': [
        { category: 'base', pattern: base },
        { category: 'face', pattern: 'src/index.ts' },
      ],
      'import/resolver': { typescript: { project: 'tsconfig.json' } },
    },
    rules: {
      'boundaries/no-unknown-files': 'error',
      'boundaries/dependencies': [
        'error',
        {
          default: 'disallow',
          checkUnknownLocals: true,
          message: 'imports point down the layers only (see the table in ARCHITECTURE.md)',
          policies: [
            { from: { file: { categories: 'base' } }, allow: [toBase] },
            ...Object.entries(all).map(([type, below]) => ({
              from: { element: { type } },
              allow: [toBase, ...toLayers(below)],
            })),
            // Clipping shares nothing with privacy but the type of its groups.
            {
              from: { element: { type: 'clipping' } },
              allow: [
                { to: { element: { type: 'privacy' } }, dependency: { kind: 'type', specifiers: ['Group', 'Groups'] } },
              ],
            },
            // The library's face gathers all layers below the command line.
            {
              from: { file: { categories: 'face' } },
              allow: [toBase, ...toLayers([...lower, 'training'])],
            },
          ],
        },
      ],
    },
  },
);
