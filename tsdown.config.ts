import { defineConfig } from 'tsdown';

/** What package.json exports, and the programs: the command line, threads and a process that are started by path. */
const exported = [
  'index',
  'tensor/index',
  'graph/index',
  'privacy/index',
  'privacy/accountant',
  'privacy/events',
  'optimizers/index',
  'models/index',
  'data/index',
];
const programs = ['cli/main', 'bench/child', 'bench/measure', 'bench/process', 'bench/statistics', 'runtime/worker', 'random/noise-worker'];

export default defineConfig({
  entry: [...exported.map((name) => `src/${name}.ts`), ...programs.map((name) => `src/${name}.{ts,js}`)],
  format: 'esm',
  platform: 'node',
  target: 'node20',
  // One file for each source: a stack trace reads like the source, and a browser loads only what it uses.
  unbundle: true,
  root: 'src',
  fixedExtension: false,
  dts: true,
  sourcemap: true,
  clean: true,
  failOnWarn: true,
  checks: { pluginTimings: false },
});
