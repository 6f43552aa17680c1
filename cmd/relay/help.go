package main

import (
	"cmp"
	"context"
	"fmt"
	"go/doc/comment"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/docs"
)

// topics are sections of the documents: page and heading.
var topics = map[string][2]string{
	"archive-tables": {"operations/running.md", "Archive"},
	"doctor-checks":  {"operations/acting.md", "Doctor"},
	"exit-codes":     {"operations/running.md", "Exit codes"},
	"held-events":    {"operations/acting.md", "Held events"},
	"incidents":      {"operations/acting.md", "At 3 a.m."},
	"kafka":          {"security.md", "Kafka: TLS and SASL"},
	"metrics":        {"metrics.md", "Relay"},
	"outboxes":       {"operations/many.md", "Which outboxes"},
	"postgres":       {"security.md", "Postgres: sslmode"},
	"probes":         {"operations/running.md", "Health"},
	"quotas":         {"operations/running.md", "Quotas of Kafka"},
	"refused-events": {"operations/acting.md", "Refused events"},
	"roles":          {"security.md", "Roles"},
	"secrets":        {"security.md", "Secrets"},
	"settings":       {"operations/running.md", "Settings"},
	"sleeping":       {"operations/running.md", "A database that sleeps"},
	"stopping":       {"operations/running.md", "Start and stop"},
	"tables":         {"operations/running.md", "Tables"},
	"wal-feed":       {"operations/running.md", "Reading the WAL"},
}

// footer stands below every help text.
func footer() string {
	return plain("Topics of relay help: "+strings.Join(slices.Sorted(maps.Keys(topics)), ", ")+".", 80)
}

type helpCommand struct {
	Topic []string `arg:"" optional:"" help:"A topic, or a command."`
}

func (helpCommand) noDatabase() {}

func (c helpCommand) run(ctx context.Context, p *program) error {
	if len(c.Topic) == 1 {
		if at, ok := topics[c.Topic[0]]; ok {
			text, err := section(at)
			if err == nil {
				_, err = io.WriteString(p.stdout, plain(text, min(cmp.Or(p.stdout.width, 80), 120)))
			}
			return err
		}
	}
	node := p.tree
	for _, word := range c.Topic {
		if node = childNamed(node, word); node == nil {
			known := slices.Collect(maps.Keys(topics))
			for _, child := range p.tree.Children {
				known = append(known, child.Name)
			}
			return service.Usage("%s is no topic and no command%s", strings.Join(c.Topic, " "),
				service.DidYouMean(c.Topic[0], slices.Values(known)))
		}
	}
	run(ctx, append(slices.Clone(c.Topic), "--help"), p.env, p.stdout.Writer, io.Discard)
	return nil
}

// section returns a section of a page, without its heading.
func section(at [2]string) (string, error) {
	page, heading := at[0], at[1]
	text, err := docs.Pages.ReadFile(page)
	if err != nil {
		return "", err
	}
	_, found, ok := strings.Cut(string(text), "\n## "+heading+"\n\n")
	if !ok {
		return "", fmt.Errorf("%s has no section %s", page, heading)
	}
	found, _, _ = strings.Cut(found, "\n## ")
	return found + "\nMore: docs/" + page + "\n", nil
}

var (
	markdownLink = regexp.MustCompile(`\[([^]]+)\]\([^)]+\)`)
	listItem     = regexp.MustCompile(`^(?:- |(\d+)\. )`)
)

// plain formats Markdown for a reader.
func plain(markdown string, width int) string {
	return string((&comment.Printer{TextWidth: width, TextCodePrefix: "    "}).Text(parsed(markdown)))
}

// parsed reads Markdown. Links lose their targets, and the rows of a table become a list.
func parsed(markdown string) *comment.Doc {
	var doc comment.Doc
	var last comment.Block // that the next line may continue
	add := func(b comment.Block) { doc.Content, last = append(doc.Content, b), b }
	var head []string // of the table
	fenced := false
	for line := range strings.Lines(markdownLink.ReplaceAllString(strings.ReplaceAll(markdown, "**", ""), "$1")) {
		text := strings.TrimSpace(line)
		code, inCode := last.(*comment.Code)
		list, inList := last.(*comment.List)
		item := listItem.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "```"):
			if fenced = !fenced; fenced {
				add(&comment.Code{})
			}
		case fenced:
			code.Text += line
		case text == "":
			if head != nil || !inList {
				head, last = nil, nil
			}
		case strings.HasPrefix(line, "|"):
			if head == nil {
				head = cells(text)
				add(&comment.List{ForceBlankBefore: true})
			} else if !strings.HasPrefix(text, "|--") {
				list.Items = append(list.Items, &comment.ListItem{Content: paragraph(row(head, cells(text)))})
			}
		case item != nil:
			if !inList {
				list = &comment.List{ForceBlankBefore: true}
				add(list)
			}
			list.Items = append(list.Items, &comment.ListItem{
				Number: item[1], Content: paragraph(strings.TrimPrefix(text, item[0])),
			})
		case inList && strings.HasPrefix(line, "  "):
			more(list.Items[len(list.Items)-1].Content[0], text)
		case inCode:
			code.Text += strings.TrimPrefix(line, "    ")
		case strings.HasPrefix(line, "    "):
			add(&comment.Code{Text: line[4:]})
		case last != nil && !inList:
			more(last, text)
		default:
			add(paragraph(text)[0])
		}
	}
	return &doc
}

func paragraph(text string) []comment.Block {
	return []comment.Block{&comment.Paragraph{Text: []comment.Text{comment.Plain(text)}}}
}

func more(b comment.Block, text string) {
	p := b.(*comment.Paragraph)
	p.Text = append(p.Text, comment.Plain("\n"+text))
}

func cells(row string) []string {
	cells := strings.Split(strings.Trim(row, "|"), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// row is the text of a table's row: a term, its meaning, and what else the head names.
func row(head, cells []string) string {
	text := cells[0] + ": " + cells[1]
	for i, cell := range cells[2:] {
		if cell != "" {
			text += "; " + head[i+2] + ": " + cell
		}
	}
	return text
}
