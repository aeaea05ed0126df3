import { GhostgradError } from '../errors.ts';
import { type GraphBuilder, type Value, add, div, mul, neg, sub, where } from '../ops/builder.ts';
import { unknownName } from '../suggest.ts';

/** A clip function written by a user: a tree over numbers, variables (a string) and {@link operations}. */
export type Expression = number | string | Operation;

interface Operation {
  readonly operation: string;
  readonly operands: readonly Expression[];
}

type Variables = Readonly<Record<string, Value>>;
type Emit = (b: GraphBuilder, ...operands: Value[]) => Value;

/** A comparison counts as 1 or 0. */
const compare = (op: string): Emit => (b, x, y) => where(b, b.op(op, [x, y]), b.scalar(1), b.scalar(0));
const elementwise = (op: string): Emit => (b, ...operands) => b.op(op, operands);

/** Operators by precedence, loosest first; ^ binds tighter than a sign, and to the right. */
const binary: readonly Readonly<Record<string, Emit>>[] = [
  { '<': compare('Less'), '<=': compare('LessOrEqual'), '>': compare('Greater'), '>=': compare('GreaterOrEqual') },
  { '+': (b, x, y) => add(b, x, y), '-': (b, x, y) => sub(b, x, y) },
  { '*': (b, x, y) => mul(b, x, y), '/': (b, x, y) => div(b, x, y) },
];

const functions: Readonly<Record<string, { readonly operands: 1 | 2 | 3; readonly emit: Emit }>> = {
  min: { operands: 2, emit: elementwise('Min') },
  max: { operands: 2, emit: elementwise('Max') },
  sqrt: { operands: 1, emit: elementwise('Sqrt') },
  exp: { operands: 1, emit: elementwise('Exp') },
  log: { operands: 1, emit: elementwise('Log') },
  abs: { operands: 1, emit: elementwise('Abs') },
  where: { operands: 3, emit: (b, condition, x, y) => where(b, b.op('Greater', [condition, b.scalar(0)]), x, y) },
};

const operations: Readonly<Record<string, Emit>> = {
  ...Object.assign({}, ...binary) as Record<string, Emit>,
  '^': elementwise('Pow'),
  'negate': (b, x) => neg(b, x),
  ...Object.fromEntries(Object.entries(functions).map(([name, { emit }]) => [name, emit])),
};

interface Token {
  readonly text: string;
  readonly at: number;
}

/**
 * Reads an expression such as `min(1, R / (n + 0.1))`.
 *
 * In order of precedence: `^`; a sign; `*` and `/`; `+` and `-`; one comparison `<`, `<=`, `>` or `>=`, which gives 1 or
 * 0. Functions: `min`, `max` (two operands), `sqrt`, `exp`, `log`, `abs`, and `where(c, x, y)`, x where c > 0 and else y.
 *
 * @param variables the names that may stand in it
 * @throws GhostgradError with the position (from 1) and, for an unknown name, the nearest one
 */
export function parseExpression(source: string, variables: readonly string[], location: string): Expression {
  const tokens = tokenise(source, location);
  let next = 0;
  const peek = (): Token => tokens[next] ?? { text: 'the end', at: source.length };
  const fault = (expected: string, { text, at } = peek()): GhostgradError => new GhostgradError({
    what: 'an expression that cannot be read', where: location, found: `${text} at position ${at + 1} of "${source}"`, expected,
  });
  const take = (text: string): void => {
    if (peek().text !== text) throw fault(`"${text}"`);
    next++;
  };

  const level = (precedence: number): Expression => {
    const operators = binary[precedence];
    if (operators === undefined) return signed();
    let left = level(precedence + 1);
    while (Object.hasOwn(operators, peek().text)) {
      const { text } = tokens[next++]!;
      left = { operation: text, operands: [left, level(precedence + 1)] };
      if (precedence === 0) break;
    }
    return left;
  };
  const signed = (): Expression => {
    if (peek().text === '-') {
      next++;
      return { operation: 'negate', operands: [signed()] };
    }
    const base = operand();
    if (peek().text !== '^') return base;
    next++;
    return { operation: '^', operands: [base, signed()] };
  };
  const operand = (): Expression => {
    const token = peek();
    if (next >= tokens.length) throw fault('a number, a name or "("');
    next++;
    if (token.text === '(') {
      const inner = level(0);
      take(')');
      return inner;
    }
    if (/^[\d.]/.test(token.text)) return Number(token.text);
    if (!/^[A-Za-z]/.test(token.text)) throw fault('a number, a name or "("', token);
    return Object.hasOwn(functions, token.text) ? call(token) : variable(token);
  };
  const variable = ({ text, at }: Token): Expression => {
    if (variables.includes(text)) return text;
    throw unknownName('name', text, [...variables, ...Object.keys(functions)], `${location}: position ${at + 1} of "${source}"`);
  };
  const call = (name: Token): Expression => {
    const { operands } = functions[name.text]!;
    take('(');
    const given = [level(0)];
    while (peek().text === ',') {
      next++;
      given.push(level(0));
    }
    take(')');
    if (given.length !== operands) throw fault(`${operands} operands of ${name.text}, not ${given.length}`, name);
    return { operation: name.text, operands: given };
  };

  const whole = level(0);
  if (next < tokens.length) throw fault('an operator, or the end');
  return whole;
}

const longest = 1000;

function tokenise(source: string, location: string): readonly Token[] {
  if (source.length > longest) {
    throw new GhostgradError({
      what: 'an expression that is too long', where: location, found: `${source.length} characters`, expected: `at most ${longest}`,
    });
  }
  const tokens: Token[] = [];
  const pattern = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|[<>]=?|[-+*/^(),])|$)/y;
  while (pattern.lastIndex < source.length) {
    const from = pattern.lastIndex;
    const found = pattern.exec(source);
    if (found === null) {
      const at = from + source.slice(from).search(/\S/);
      throw new GhostgradError({
        what: 'an expression that cannot be read', where: location, found: `${source[at]!} at position ${at + 1} of "${source}"`,
        expected: 'numbers, names, + - * / ^ < <= > >= ( ) and commas',
      });
    }
    const [, text] = found;
    if (text !== undefined) tokens.push({ text, at: pattern.lastIndex - text.length });
  }
  return tokens;
}

/** Appends what computes the expression; operands broadcast. */
export function emitExpression(b: GraphBuilder, expression: Expression, variables: Variables): Value {
  if (typeof expression === 'number') return b.scalar(expression);
  if (typeof expression === 'string') return variables[expression]!;
  const { operation, operands } = expression;
  return operations[operation]!(b, ...operands.map((operand) => emitExpression(b, operand, variables)));
}
