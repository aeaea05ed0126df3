import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 300_000,
    hookTimeout: 60_000,
    pool: 'forks',
    // Threads that the sources start inherit it.
    execArgv: ['--import', new URL('./test/support/typescript-loader.mjs', import.meta.url).href],
    maxWorkers: 2,
  },
});
