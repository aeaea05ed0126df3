import { GhostgradError } from '../errors.ts';
import type { Graph, Node } from '../graph/ir.ts';
import type { Group } from '../privacy/groups.ts';
import { matching, unknownName } from '../suggest.ts';

/** Parameters whose joint per-example gradient is clipped to one threshold. */
export type ClippingGroup = Pick<Group, 'name' | 'parameters'>;

/** Every trainable parameter in exactly one group. */
export type Partition = readonly ClippingGroup[];

export const groupStyles = ['flat', 'per-layer', 'per-parameter', 'per-block', 'per-device', 'groups'] as const;
export type GroupStyle = (typeof groupStyles)[number];

export interface Grouping {
  readonly style: GroupStyle;
  /** For the styles {@link stylesOfNames}: the patterns of each group (`*` stands for any characters). */
  readonly groups?: Readonly<Record<string, readonly string[]>> | undefined;
}

/** The styles whose groups are named: in `per-device`, by the device that holds them. */
export const stylesOfNames: ReadonlySet<GroupStyle> = new Set(['groups', 'per-device']);

/**
 * The clipping groups of a model's trainable `parameters`, in the order in which the parameters stand.
 *
 * - `flat`: one group, `all`.
 * - `per-parameter`: one for each, of its name.
 * - `per-layer`: parameters of one layer together: those that one node takes; those whose names differ in the last
 *   component only (`fc.weight`, `fc.bias`); and a bias or scale (one axis) that meets, in a node of two operands, what a
 *   node has just made of another parameter. A parameter whose name says nothing (no `.` or `/`) goes by the name of the
 *   node that takes it. A layer is called by what its parameters' names have in common.
 * - `per-block`: the layers of a numbered block together. A block's name goes up to the first component that is a number
 *   (`encoder.layer.3`, `h.3`, `layer2.0`), or ends in `_` and one (`encoder_layer_3`); a layer without such a
 *   component is in the block of its first component (`embeddings`, `head`).
 * - `groups`: as named. A parameter must match in exactly one group; a last group of the pattern `*` alone takes the rest.
 * - `per-device`: likewise, a group for each device.
 *
 * @throws GhostgradError for a pattern without a match, a parameter in no group or in two, or groups that do not go with
 * the style
 */
export function partitionOf(
  grouping: Grouping, { nodes, initializers }: Pick<Graph, 'nodes' | 'initializers'>, parameters: readonly string[],
): Partition {
  const { style, groups = {} } = grouping;
  if (!stylesOfNames.has(style) && Object.keys(groups).length > 0) {
    throw new GhostgradError({
      what: 'clipping groups are named, but not used', where: 'clipping.groups', found: `style: ${style}`, expected: 'style: groups',
      fix: 'set clipping.style to groups (or per-device), or remove clipping.groups',
    });
  }
  switch (style) {
    case 'flat': return flat(parameters);
    case 'per-parameter': return parameters.map((name) => ({ name, parameters: [name] }));
    case 'per-layer': return layersOf(nodes, initializers, parameters);
    case 'per-block': return joinedBy(layersOf(nodes, initializers, parameters), ({ name }) => blockOf(name));
    case 'groups': case 'per-device': return namedGroups(groups, parameters);
  }
}

/** Flat clipping. */
export const flat = (parameters: readonly string[]): Partition => [{ name: 'all', parameters }];

/**
 * The number of the group that each parameter is in.
 *
 * @throws GhostgradError unless `groups` is a partition of `parameters`, none of its groups empty
 */
export function groupNumbers(groups: Partition, parameters: readonly string[]): ReadonlyMap<string, number> {
  const known = new Set(parameters);
  const numbers = new Map<string, number>();
  groups.forEach(({ name, parameters: members }, k) => {
    if (members.length === 0) throw broken(`clipping group "${name}" has no parameters`);
    for (const member of members) {
      const other = numbers.get(member);
      if (other !== undefined) throw broken(`parameter "${member}" is in two clipping groups`, `"${groups[other]!.name}" and "${name}"`);
      if (!known.has(member)) throw unknownName('trained parameter', member, parameters, `clipping group "${name}"`);
      numbers.set(member, k);
    }
  });
  const missing = parameters.find((parameter) => !numbers.has(parameter));
  if (missing !== undefined) throw broken(`parameter "${missing}" is in no clipping group`);
  return numbers;
}

const broken = (what: string, found?: string, fix?: string): GhostgradError => new GhostgradError({
  what, where: 'clipping.groups', found, expected: 'every trainable parameter in exactly one group', fix,
});

function namedGroups(groups: Readonly<Record<string, readonly string[]>>, parameters: readonly string[]): Partition {
  const named = Object.entries(groups);
  const isRest = (i: number): boolean => i === named.length - 1 && named[i]![1].length === 1 && named[i]![1][0] === '*';
  const found = named.map(([name, patterns], i) => ({
    name,
    parameters: isRest(i) ? [] : [...new Set(patterns.flatMap((pattern) => matching(pattern, parameters, `clipping.groups.${name}`)))],
  }));
  const taken = new Set(found.flatMap((group) => group.parameters));
  const rest = parameters.filter((parameter) => !taken.has(parameter));
  const all = found.map((group, i) => (isRest(i) ? { ...group, parameters: rest } : group));
  if (named.length > 0 && !isRest(named.length - 1) && rest.length > 0) {
    throw broken(`parameter "${rest[0]!}" is in no clipping group`, `${rest.length} of ${parameters.length} parameters are in none`, 'let a last group have the pattern "*"');
  }
  groupNumbers(all, parameters);
  return all;
}

/** The components of a parameter's name, or of the name of the node that takes it where its own has only one. */
function componentsOf(parameter: string, takers: readonly Node[]): readonly string[] {
  const split = (name: string): string[] => name.split(/[./]/).filter((part) => part !== '');
  const own = split(parameter);
  const byNode = split(takers[0]?.name ?? '');
  return own.length > 1 || byNode.length < 2 ? own : byNode;
}

function layersOf(nodes: readonly Node[], initializers: Graph['initializers'], parameters: readonly string[]): Partition {
  const trained = new Set(parameters);
  const takers = new Map(parameters.map((name) => [name, [] as Node[]]));
  for (const node of nodes) for (const input of new Set(node.inputs)) takers.get(input)?.push(node);
  const owners = new Map(parameters.map((name) => [name, componentsOf(name, takers.get(name)!).slice(0, -1).join('.')]));
  const made = new Map(nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));
  const isVector = (name: string): boolean => initializers.get(name)!.shape.filter((n) => n > 1).length <= 1;
  const byOwner = groupBy(parameters.filter((name) => owners.get(name) !== ''), (name) => owners.get(name)!);

  const layer = new Map(parameters.map((name) => [name, name]));
  const join = (names: readonly string[]): void => {
    const old = new Set(names.map((name) => layer.get(name)!));
    const [into] = old;
    for (const [name, of] of layer) if (old.has(of)) layer.set(name, into!);
  };
  for (const alike of byOwner.values()) join(alike);
  for (const { inputs } of nodes) {
    const together = inputs.filter((v) => trained.has(v));
    if (together.length > 1) join(together);
    const [parameter] = together;
    if (together.length !== 1 || inputs.length !== 2 || !isVector(parameter!) || (byOwner.get(owners.get(parameter!)!)?.length ?? 1) > 1) continue;
    const before = made.get(inputs.find((v) => v !== parameter) ?? '')?.inputs.filter((v) => trained.has(v)) ?? [];
    if (before.length > 0) join([parameter!, ...before]);
  }
  const members = [...groupBy(parameters, (name) => layer.get(name)!).values()];
  return uniquelyNamed(members.map((names) => {
    // What a parameter itself is called goes before what the node that takes it is called.
    const called = [...names].sort((a, b) => Number(/[./]/.test(b)) - Number(/[./]/.test(a)));
    return { name: called.map((name) => owners.get(name)!).find((owner) => owner !== '') ?? names[0]!, parameters: names };
  }));
}

function blockOf(layer: string): string {
  const components = layer.split('.');
  const at = [/^\d+$/, /_\d+$/].map((number) => components.findIndex((part) => number.test(part))).find((i) => i !== -1);
  return components.slice(0, (at ?? 0) + 1).join('.');
}

const joinedBy = (layers: Partition, nameOf: (layer: ClippingGroup) => string): Partition =>
  [...groupBy(layers, nameOf)].map(([name, parts]) => ({ name, parameters: parts.flatMap((part) => part.parameters) }));

/** Layers that would share a name are called by their first parameter. */
function uniquelyNamed(layers: Partition): Partition {
  const counts = groupBy(layers, ({ name }) => name);
  return layers.map((layer) => (counts.get(layer.name)!.length === 1 ? layer : { ...layer, name: layer.parameters[0]! }));
}

function groupBy<T>(items: readonly T[], keyOf: (item: T) => string): ReadonlyMap<string, readonly T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]);
  return groups;
}
