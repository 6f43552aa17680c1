package main

import (
	"cmp"
	"context"
	"fmt"
	"go/doc/comment"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type manCommand struct{}

func (manCommand) noDatabase() {}

func (manCommand) run(_ context.Context, p *program) error {
	m := manual{about: p.about}
	release, _, _ := strings.Cut(version(), " ")
	m.line(`.TH RELAY 1 "" "relay %s" "effectonce"`+"\n.nh\n.ad l", roff(release))
	m.line(".SH NAME\nrelay \\- publishes an outbox in Postgres to Kafka")
	m.line(".SH SYNOPSIS\n.B relay\n.I command\n[flags]")
	m.line(".SH DESCRIPTION\n%s", roff(p.tree.Help))
	m.commands(p.tree.Leaves(true))
	m.heading("Flags of every command")
	m.flags(p.tree.Flags)
	for _, title := range m.groups {
		m.heading(title)
		m.flags(m.grouped[title])
	}
	for _, s := range [][2]string{{"Settings", "settings"}, {"Exit status", "exit-codes"}} {
		text, err := section(topics[s[1]])
		if err != nil {
			return err
		}
		m.heading(s[0])
		m.blocks(parsed(text).Content)
	}
	_, err := io.WriteString(p.stdout, m.page.String())
	return err
}

// manual is a page for man, in roff.
type manual struct {
	page    strings.Builder
	about   func(*kong.Value) string // a flag
	groups  []string                 // of flags that many commands have: their titles
	grouped map[string][]*kong.Flag
}

func (m *manual) line(format string, args ...any) { fmt.Fprintf(&m.page, format+"\n", args...) }

func (m *manual) heading(title string) {
	m.line(".SH %s", strings.ToUpper(roff(strings.TrimSuffix(title, ":"))))
}

// commands describes each command with its own flags, and collects those of groups.
func (m *manual) commands(leaves []*kong.Node) {
	m.grouped = map[string][]*kong.Flag{}
	seen := map[string]bool{}
	title := ""
	for _, node := range leaves {
		if group := node.ClosestGroup(); group.Title != title {
			title = group.Title
			m.heading(title)
		}
		m.line(".SS %s\n%s", roff(node.FullPath()), roff(node.Help))
		m.blocks(new(comment.Parser).Parse(node.Detail).Content)
		var own []*kong.Flag
		for _, flag := range node.Flags {
			switch {
			case flag.Group == nil:
				own = append(own, flag)
			case !seen[flag.Name]:
				seen[flag.Name] = true
				if m.grouped[flag.Group.Title] == nil {
					m.groups = append(m.groups, flag.Group.Title)
				}
				m.grouped[flag.Group.Title] = append(m.grouped[flag.Group.Title], flag)
			}
		}
		m.flags(own)
	}
}

func (m *manual) flags(flags []*kong.Flag) {
	for _, flag := range flags {
		m.line(".TP\n\\fB%s\\fR\n%s", roff(flag.Summary()), roff(m.about(flag.Value)))
	}
}

func (m *manual) blocks(blocks []comment.Block) {
	for _, b := range blocks {
		switch b := b.(type) {
		case *comment.Code:
			m.line(".PP\n.in +4n\n.nf\n%s\n.fi\n.in", roff(strings.TrimRight(b.Text, "\n")))
		case *comment.List:
			for _, item := range b.Items {
				m.line(".IP %s 4\n%s", cmp.Or(item.Number, `\(bu`), textOf(item.Content[0]))
			}
		default:
			m.line(".PP\n%s", textOf(b))
		}
	}
}

// textOf is the text of a paragraph.
func textOf(b comment.Block) string {
	return roff(string(new(comment.Printer).Text(&comment.Doc{Content: []comment.Block{b}})))
}

// roff escapes a text: a line that begins with a dot or an apostrophe would be a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(strings.TrimSpace(text))
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
