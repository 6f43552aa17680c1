// Package docs has the pages that `relay help` prints.
package docs

import "embed"

// Pages are those pages, as Markdown.
//
//go:embed metrics.md security.md operations/acting.md operations/many.md operations/running.md
var Pages embed.FS
