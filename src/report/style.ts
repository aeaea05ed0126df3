/** The page's style: light or dark as the reader's screen is, and black on white in print. */
export const style = `
:root { color-scheme: light dark; --text: #1b1b1b; --back: #ffffff; --soft: #f3f4f6; --line: #d4d7dd; --good: #00704f; --bad: #b3261e; --warn: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --back: #16181c; --soft: #22252b; --line: #3b3f47; --good: #4cc9a0; --bad: #ff8a80; --warn: #e6b450; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 52rem; font: 16px/1.55 system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; color: var(--text); background: var(--back); }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
p.lead { font-size: 1.1rem; } .note { color: color-mix(in srgb, var(--text) 70%, transparent); font-size: .9rem; }
.badge { display: inline-block; padding: .15rem .6rem; border: 2px solid currentColor; border-radius: 1rem; font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.card { background: var(--soft); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem 1.2rem; margin: 1rem 0; }
.uncovered { border: 3px solid var(--bad); border-radius: .5rem; padding: 0 1.2rem 1rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; } th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
tbody th { font-weight: 500; width: 45%; }
svg { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
pre, code { font: .85rem/1.4 ui-monospace, 'Cascadia Mono', Menlo, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
@media print { :root { --text: #000; --back: #fff; --soft: #fff; --line: #999; --good: #000; --bad: #000; --warn: #000; } body { max-width: none; padding: 0; font-size: 11pt; } h2, figure, .card { break-inside: avoid; break-after: avoid-page; } details { display: block; } }
`;
