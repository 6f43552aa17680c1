// Package docs has the pages that `relay help` prints, and the one that `relay-dev init` writes.
package docs

import "embed"

// Pages are those pages, as Markdown.
//
//go:embed metrics.md security.md operations/acting.md operations/many.md operations/running.md
var Pages embed.FS

// Assistants is the page for coding assistants, with the front matter of a skill.
//
//go:embed assistants.md
var Assistants []byte
