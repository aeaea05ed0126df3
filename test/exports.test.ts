import { readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';

const root = resolve(import.meta.dirname, '..');
const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  readonly exports: Readonly<Record<string, { readonly types: string; readonly default: string } | string>>;
};
/** The modules among them; the others are files as they are. */
const modules = Object.entries(exports).flatMap(([entry, target]) => (typeof target === 'string' ? [] : [{ entry, ...target }]));
const sourceOf = (name: string): string =>
  join(root, (modules.find(({ entry }) => entry === name)?.default ?? '').replace('./dist/', 'src/').replace(/\.js$/, '.ts'));

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
    for (const { entry, types, default: module } of modules) {
      expect(types).toBe(module.replace(/\.js$/, '.d.ts'));
      expect(() => readFileSync(sourceOf(entry))).not.toThrow();
    }
    const files = Object.values(exports).filter((target) => typeof target === 'string');
    for (const file of files) expect(() => readFileSync(join(root, file))).not.toThrow();
  });

  it.each(['./tensor', './graph', './privacy/accountant', './privacy/events'])('bring nothing of Node into a browser: %s', (entry) => {
    const brought = imported(sourceOf(entry));
    expect(brought.size).toBeGreaterThan(1);
    expect([...brought].filter(isNodes)).toEqual([]);
  });

  it('would notice if they did', () => {
    expect([...imported(sourceOf('.'))].filter(isNodes)).toEqual(expect.arrayContaining(['node:fs', 'node:worker_threads']));
  });
});
