package pgtx

import (
	"slices"
	"strings"
	"unicode"
)

// Ends tells whether a statement would end the transaction: COMMIT, END, ABORT, ROLLBACK without TO, and PREPARE
// TRANSACTION. It reads the first statement of a text only: Left finds out what else has ended a transaction.
func Ends(query string) bool {
	var words []string // the first four: rollback transaction to savepoint
	for len(words) < 4 {
		query = strings.TrimLeftFunc(query, func(r rune) bool {
			return unicode.IsSpace(r) || r == ';' && len(words) == 0
		})
		switch {
		case strings.HasPrefix(query, "--"):
			_, query, _ = strings.Cut(query, "\n")
			continue
		case strings.HasPrefix(query, "/*"):
			_, query, _ = strings.Cut(query, "*/")
			continue
		}
		n := strings.IndexFunc(query, func(r rune) bool { return !unicode.IsLetter(r) })
		if n < 0 {
			n = len(query)
		}
		if n == 0 {
			break
		}
		words = append(words, strings.ToLower(query[:n]))
		query = query[n:]
	}
	if len(words) == 0 {
		return false
	}
	switch words[0] {
	case "commit", "end", "abort":
		return true
	case "rollback":
		return !slices.Contains(words, "to")
	case "prepare":
		return len(words) > 1 && words[1] == "transaction"
	}
	return false
}
