package pgtx

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Ends tells whether a text of statements would end the transaction: COMMIT, END, ABORT, ROLLBACK without TO, and
// PREPARE TRANSACTION.
func Ends(query string) bool { return look(query).ends }

// effects are what a text of statements does beyond its rows, as far as the text tells.
type effects struct {
	ends  bool // it ends the transaction
	sets  bool // it changes settings, or takes a name, in what the rest of the transaction sees
	lasts bool // that outlives the transaction: settings, locks, names and temporary tables of the session
}

func look(query string) (e effects) {
	if !strings.Contains(query, ";") {
		e = lookOne(query)
	} else {
		split(query, func(one string) { e = e.and(lookOne(one)) })
	}
	text := strings.ToLower(query)
	if n := strings.Count(text, "set_config"); n > 0 {
		// Only a literal tells that the setting ends with the transaction.
		e = e.and(effects{sets: true, lasts: len(localConfig.FindAllString(text, n)) < n})
	}
	if strings.Contains(text, "pg_advisory_lock") || strings.Contains(text, "pg_try_advisory_lock") ||
		strings.Contains(text, "pg_settings") && strings.Contains(text, "update") { // whose rule calls set_config
		e.sets, e.lasts = true, true
	}
	return e
}

var (
	localConfig = regexp.MustCompile(`\bset_config\s*\(([^()]|\([^()]*\))*(,|=>)\s*true\s*\)`)
	temporary   = regexp.MustCompile(`\b(create(\s+or\s+replace)?|into)(\s+(local|global))?\s+temp(orary)?\s+[\w"]` +
		`|\bpg_temp\.`)
	setsInBlock = regexp.MustCompile(`(;|\b(begin|then|else|loop))\s*(set|reset|discard|execute)\b`)
)

func (e effects) and(f effects) effects {
	return effects{e.ends || f.ends, e.sets || f.sets, e.lasts || f.lasts}
}

func lookOne(statement string) (e effects) {
	words, text := firstWords(statement), strings.ToLower(statement)
	second := ""
	if len(words) > 1 {
		second = words[1]
	}
	if len(words) == 0 {
		return e
	}
	switch words[0] {
	case "commit", "end", "abort":
		e.ends = true
	case "rollback":
		e.ends = !slices.Contains(words, "to")
	case "prepare":
		e.ends = second == "transaction"
		e.sets, e.lasts = !e.ends, !e.ends // a name that another event may use, too
	case "declare":
		e.sets, e.lasts = true, slices.Contains(strings.Fields(text), "hold")
	case "set":
		e.sets, e.lasts = true, second != "local" && second != "transaction" && second != "constraints"
	case "begin", "start": // a warning, and what it names is set all the same
		e.sets = second != ""
	case "do":
		e.sets = setsInBlock.MatchString(text)
		e.lasts = e.sets
	case "reset", "discard", "deallocate", "listen", "unlisten", "load":
		e.sets, e.lasts = true, true
	}
	if strings.Contains(text, "temp") && temporary.MatchString(text) {
		e = e.and(effects{sets: true, lasts: !strings.Contains(text, "on commit drop")})
	}
	return e
}

// firstWords returns the first four words of a statement, in lower case: rollback transaction to savepoint.
func firstWords(query string) (words []string) {
	for len(words) < 4 {
		query = strings.TrimLeftFunc(query, unicode.IsSpace)
		switch {
		case strings.HasPrefix(query, "--"):
			_, query, _ = strings.Cut(query, "\n")
			continue
		case strings.HasPrefix(query, "/*"):
			query = query[comment(query):]
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
	return words
}

// split calls do with each statement of a text, as Postgres splits it: not at a semicolon within quotes, comments
// and dollar quotes. It takes standard_conforming_strings for on, as it is since Postgres 9.1.
func split(query string, do func(statement string)) {
	start := 0
	for i := 0; i < len(query); {
		rest := query[i:]
		switch c := query[i]; {
		case c == ';':
			do(query[start:i])
			i++
			start = i
		case c == '\'':
			i += quoted(rest, i > 0 && (query[i-1] == 'e' || query[i-1] == 'E'))
		case c == '"':
			i += quoted(rest, false)
		case strings.HasPrefix(rest, "--"):
			if n := strings.IndexByte(rest, '\n'); n >= 0 {
				i += n
			} else {
				i = len(query)
			}
		case strings.HasPrefix(rest, "/*"):
			i += comment(rest)
		case c == '$' && (i == 0 || !inName(query[i-1])):
			i += dollarQuoted(rest)
		default:
			i++
		}
	}
	do(query[start:])
}

// quoted returns the length of what begins with a quote, up to the next one like it.
func quoted(s string, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == s[0]:
			return i + 1
		}
	}
	return len(s)
}

// comment returns the length of a comment that begins with /*. Comments nest.
func comment(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); {
		switch s[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			i += 2
			if depth--; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(s)
}

// dollarQuoted returns the length of a text between $tag$ and $tag$, or 1: a parameter, or a part of a name.
func dollarQuoted(s string) int {
	n := 1
	for n < len(s) && inName(s[n]) {
		n++
	}
	if n == len(s) || s[n] != '$' || n > 1 && '0' <= s[1] && s[1] <= '9' {
		return 1
	}
	tag := s[:n+1]
	if end := strings.Index(s[n+1:], tag); end >= 0 {
		return n + 1 + end + len(tag)
	}
	return len(s)
}

func inName(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c >= 0x80
}
