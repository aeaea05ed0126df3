import { GhostgradError } from '../errors.ts';
import { type Node, showNode } from './ir.ts';

/** Gives `hint` itself the first time, then `hint_1`, `hint_2`, …; never a name that is taken. */
export function uniqueNames(taken: Iterable<string> = []): (hint: string) => string {
  const used = new Set(taken);
  const next = new Map<string, number>();
  return (hint) => {
    let name = hint;
    let i = next.get(hint) ?? 1;
    while (used.has(name)) name = `${hint}_${i++}`;
    next.set(hint, i);
    used.add(name);
    return name;
  };
}

/**
 * The nodes in an order in which every value is made before it is used; the given order when it is one already.
 *
 * @param given values that exist before the first node: inputs and initializers
 * @throws GhostgradError when a value is made twice, never made, or depends on itself
 */
export function sortNodes(nodes: readonly Node[], given: ReadonlySet<string>, where?: string): readonly Node[] {
  const producers = producersOf(nodes, given, where);
  const waiting = nodes.map((node) => requireDefined(node, producers, given, where).size);
  if (isOrdered(nodes, given)) return nodes;
  const consumers = new Map<number, number[]>();
  nodes.forEach((node, i) => {
    for (const producer of dependencies(node, producers)) {
      const list = consumers.get(producer);
      if (list) list.push(i); else consumers.set(producer, [i]);
    }
  });
  const ready = [...nodes.keys()].filter((i) => waiting[i] === 0);
  for (let next = 0; next < ready.length; next++) {
    for (const consumer of consumers.get(ready[next] ?? -1) ?? []) {
      waiting[consumer] = (waiting[consumer] ?? 0) - 1;
      if (waiting[consumer] === 0) ready.push(consumer);
    }
  }
  const stuck = nodes.find((_, i) => (waiting[i] ?? 0) > 0);
  if (stuck !== undefined) {
    throw new GhostgradError({
      what: 'the graph has a cycle',
      where,
      found: `${showNode(stuck)} depends on its own outputs, or on a node that does`,
      expected: 'nodes that can be put in an order of execution',
    });
  }
  return ready.flatMap((i) => nodes[i] ?? []);
}

/** The index of the node that makes each value. */
function producersOf(
  nodes: readonly Node[],
  given: ReadonlySet<string>,
  where: string | undefined,
): ReadonlyMap<string, number> {
  const producers = new Map<string, number>();
  nodes.forEach((node, i) =>
    node.outputs.forEach((output) => {
      if (output === '') return;
      if (producers.has(output) || given.has(output)) {
        const other = given.has(output) ? 'is an input or initializer' : 'by another node';
        throw new GhostgradError({
          what: 'a value is defined twice',
          where,
          found: `"${output}" is made by ${showNode(node)} and ${other}`,
          expected: 'one definition of each value',
        });
      }
      producers.set(output, i);
    }),
  );
  return producers;
}

const dependencies = (node: Node, producers: ReadonlyMap<string, number>): ReadonlySet<number> =>
  new Set(node.inputs.flatMap((input) => producers.get(input) ?? []));

function requireDefined(
  node: Node, producers: ReadonlyMap<string, number>, given: ReadonlySet<string>, where: string | undefined,
): ReadonlySet<number> {
  const missing = node.inputs.find((input) => input !== '' && !given.has(input) && !producers.has(input));
  if (missing !== undefined) {
    throw new GhostgradError({
      what: 'a node uses a value that does not exist',
      where,
      found: `"${missing}" in ${showNode(node)}`,
      expected: 'an input, an initializer or the output of a node',
      fix: 'the file is damaged or incomplete: export it again',
    });
  }
  return dependencies(node, producers);
}

function isOrdered(nodes: readonly Node[], given: ReadonlySet<string>): boolean {
  const defined = new Set(given);
  return nodes.every((node) => {
    const ready = node.inputs.every((input) => input === '' || defined.has(input));
    node.outputs.forEach((output) => defined.add(output));
    return ready;
  });
}
