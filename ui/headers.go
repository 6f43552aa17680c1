package ui

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// fields holds content type and headers in a form.
type fields struct {
	Type  string
	Lines string // name=value
	Was   string // the lines in base64
}

// fieldsOf returns an event's content type and headers as form lines, or nil if lines cannot carry them.
func fieldsOf(e reads.Event) *fields {
	var b strings.Builder
	names := map[string]bool{}
	for _, h := range e.Own {
		if names[h[0]] || strings.Contains(h[0], "=") || !inLine(h[0]) || !inLine(h[1]) || h[0] == "" {
			return nil
		}
		names[h[0]] = true
		b.WriteString(h[0] + "=" + h[1] + "\n")
	}
	if !inLine(e.ContentType) {
		return nil
	}
	return &fields{e.ContentType, b.String(), base64.StdEncoding.EncodeToString([]byte(b.String()))}
}

// inLine reports whether a form returns a text unchanged.
func inLine(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// readLines parses headers.
func readLines(text string) (own [][2]string, err error) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\r\n", "\n")) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" {
			return nil, &refusal{
				http.StatusUnprocessableEntity, "A header cannot be read",
				"Nothing was changed. Write each as name=value, one a line.",
			}
		}
		own = append(own, [2]string{name, value})
	}
	return own, nil
}

// headersPage previews an edit of headers and content type.
type headersPage struct {
	DB, Side, ID string
	Reason       string
	Lines        []format.DiffLine
	Same         bool
	Before       string // a hash
	Type, After  string // of the form
	Command      string
}

// previewHeaders shows what an edit would change. Like previewEdit, it reads nothing.
func previewHeaders(q *request) error {
	if _, err := q.id(); err != nil {
		return err
	}
	reason, err := q.reason()
	if err != nil {
		return err
	}
	b, err := base64.StdEncoding.DecodeString(q.PostForm.Get("washeaders"))
	if err != nil {
		return errForm
	}
	before, err := readLines(string(b))
	if err != nil {
		return errForm
	}
	wasType := q.PostForm.Get("wastype")
	edit, err := q.headersEdit()
	if err != nil {
		return err
	}
	after := audit.Pairs(*edit.Headers)
	sum := admin.HeadersSum(wasType, before)
	p := headersPage{
		DB: q.db.Name, Side: q.PathValue("side"), ID: q.PathValue("id"), Reason: reason,
		Lines:  format.Diff(shownFields(wasType, before), shownFields(cmp.Or(*edit.ContentType, wasType), after)),
		Before: hex.EncodeToString(sum[:]), Type: *edit.ContentType, After: q.PostForm.Get("headers"),
		Command: q.db.WithReason(q.headersCommand(edit)...),
	}
	p.Same = shownFields(wasType, before) == shownFields(cmp.Or(*edit.ContentType, wasType), after)
	return q.render("headers", http.StatusOK, view{Title: "Edit event " + p.ID, Nav: "keys", Body: p})
}

// shownFields returns the lines of a diff.
func shownFields(contentType string, own [][2]string) string {
	var b strings.Builder
	b.WriteString("content-type=" + contentType)
	for _, h := range own {
		b.WriteString("\n" + h[0] + "=" + h[1])
	}
	return b.String()
}

// headersEdit parses the form of an edit. An empty content type changes nothing, as in the command.
func (q *request) headersEdit() (edit admin.Edit, err error) {
	own, err := readLines(q.PostForm.Get("headers"))
	if err != nil {
		return edit, err
	}
	headers := map[string]string{}
	for _, h := range own {
		if _, twice := headers[h[0]]; twice {
			return edit, &refusal{
				http.StatusUnprocessableEntity, "A header stands there twice",
				"Nothing was changed. It is " + verbs.Shown(h[0]) + ".",
			}
		}
		headers[h[0]] = h[1]
	}
	contentType := q.PostForm.Get("type")
	edit = admin.Edit{Headers: &headers, ContentType: &contentType}
	if err := audit.CheckHeaders(edit, true); err != nil {
		return edit, &refusal{
			http.StatusUnprocessableEntity, "This cannot be a header", "Nothing was changed: " + err.Error(),
		}
	}
	return edit, nil
}

func (q *request) headersCommand(edit admin.Edit) []string {
	command := reads.ParkedArgs(q.PathValue("side"), "edit", "--id="+q.PathValue("id"))
	return append(command, headerFlags(edit)...)
}

func headerFlags(edit admin.Edit) (flags []string) {
	for _, h := range audit.Pairs(*edit.Headers) {
		flags = append(flags, "--header="+h[0]+"="+h[1])
	}
	if len(*edit.Headers) == 0 {
		flags = append(flags, "--no-headers")
	}
	if *edit.ContentType != "" {
		flags = append(flags, "--content-type="+*edit.ContentType)
	}
	return flags
}

func editHeaders(q *request) error {
	id, err := q.id()
	if err != nil {
		return err
	}
	if _, err := q.reason(); err != nil {
		return err
	}
	edit, err := q.headersEdit()
	if err != nil {
		return err
	}
	sum, err := hex.DecodeString(q.PostForm.Get("before"))
	if err != nil || len(sum) != sha256.Size {
		return errForm
	}
	before := [sha256.Size]byte(sum)
	flags := headerFlags(edit)
	edit.HeadersBefore = &before
	if *edit.ContentType == "" {
		edit.ContentType = nil
	}
	return q.change(q.editing(id, edit, flags, fmt.Sprintf("The headers are changed, %d now.", len(*edit.Headers))))
}
