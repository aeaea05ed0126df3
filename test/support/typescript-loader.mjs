// Lets threads that tests start from sources import TypeScript: Node 20 does not do that by itself, and Vitest's own
// transforms stay in the threads that Vitest starts.
import { register } from 'node:module';

register('./typescript-hooks.mjs', import.meta.url);
