import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { allocatorSettings } from './allocator.ts';

it('the command line starts with the same settings as the benchmark', () => {
  const [first] = readFileSync(new URL('../cli/main.ts', import.meta.url), 'utf8').split('\n');
  const settings = Object.entries(allocatorSettings).map(([name, value]) => `${name}=${value}`).join(' ');
  expect(first).toBe(`#!/usr/bin/env -S ${settings} node`);
});
