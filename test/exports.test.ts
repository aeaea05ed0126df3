import { readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';

const root = resolve(import.meta.dirname, '..');
const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly exports: Readonly<Record<string, { readonly types: string; readonly default: string }>>;
};
const sourceOf = (entry: string): string =>
  join(root, (exports[entry]?.default ?? '').replace('./dist/', 'src/').replace(/\.js$/, '.ts'));

/** Every module that a source file brings with it when it runs; types are gone by then. */
function imported(file: string, seen = new Set<string>()): ReadonlySet<string> {
  seen.add(file);
  const source = readFileSync(file, 'utf8');
  for (const [, type, names, from = ''] of source.matchAll(/^(?:import|export) (type )?([^;]*?)(?:from )?'([^']+)';/gms)) {
    const onlyTypes = type !== undefined || /^\{(\s*type \w+( as \w+)?,?)+\s*\} ?$/.test(names ?? '');
    if (onlyTypes) continue;
    const target = from.startsWith('.') ? resolve(dirname(file), from) : from;
    if (from.startsWith('.') && !seen.has(target)) imported(target, seen);
    seen.add(target);
  }
  return seen;
}

const isNodes = (module: string): boolean =>
  module.startsWith('node:') || module.startsWith('onnxruntime-node') || builtinModules.includes(module);

describe('package.json exports', () => {
  it('are all there, as modules and as types', () => {
    for (const [entry, target] of Object.entries(exports)) {
      if (entry === './package.json') continue;
      expect(target.types).toBe(target.default.replace(/\.js$/, '.d.ts'));
      expect(() => readFileSync(sourceOf(entry))).not.toThrow();
    }
  });

  it.each(['./tensor', './graph', './privacy/accountant', './privacy/events'])('bring nothing of Node into a browser: %s', (entry) => {
    const modules = imported(sourceOf(entry));
    expect(modules.size).toBeGreaterThan(1);
    expect([...modules].filter(isNodes)).toEqual([]);
  });

  it('would notice if they did', () => {
    expect([...imported(sourceOf('.'))].filter(isNodes)).toEqual(expect.arrayContaining(['node:fs', 'node:worker_threads']));
  });
});
