package ui

import (
	"fmt"
	"html/template"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/verbs"
)

// contentTypes of the static files.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

func static(q *request) error {
	name := q.PathValue("file")
	content, err := files.ReadFile("static/" + name)
	if err != nil || q.PathValue("version") != assetVersion {
		return notFound("No such file.")
	}
	q.w.Header().Set("Content-Type", contentTypes[path.Ext(name)])
	q.w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	_, err = q.w.Write(content)
	return err
}

// parsePages reads each page with the layout around it.
func parsePages(h *Handler) (map[string]*template.Template, error) {
	funcs := template.FuncMap{
		"path": func(parts ...any) string { return h.path(parts...) }, "query": format.QueryString, "b64": format.B64,
		"num": format.Num, "rate": format.Rate, "dur": format.Dur, "since": format.Since, "iso": format.ISO,
		"utc": format.UTC, "clock": format.Clock, "said": said, "navigation": h.navigation,
		"bytes": format.Size, "plural": format.Plural, "shown": verbs.Shown, "dict": dict,
		"plural64": func(n int, what string) string { return format.Plural(int64(n), what) },
		"sentence": sentence, "long": func(text string) bool { return len(text) > longSentence },
		"bytes64": func(n int64) string { return format.Size(int(n)) },
		"runbook": func(section string) string { return h.cfg.Docs + "/runbooks/" + section },
		"seconds": func(s float64) string { return format.Dur(time.Duration(s * float64(time.Second))) },
		"failed":  func(f doctor.Finding) bool { return f.Severity == doctor.Fail },
	}
	base, err := template.New("").Funcs(funcs).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("ui: %w", err)
	}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("ui: %w", err)
	}
	pages := map[string]*template.Template{}
	for _, name := range names {
		one, err := base.Clone()
		if err == nil {
			one, err = one.ParseFS(files, name)
		}
		if err != nil {
			return nil, fmt.Errorf("ui: %w", err)
		}
		pages[strings.TrimSuffix(path.Base(name), ".html")] = one
	}
	return pages, nil
}

// dict passes several values to a template.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// group is a group of the navigation's pages.
type group struct {
	Name  string
	Pages []pageOf
}

// pageOf is a page in the navigation. ID is its view.Nav, and that of its badge.
type pageOf struct{ ID, Name, Href string }

func (h *Handler) navigation() []group {
	to := func(id, name string) pageOf { return pageOf{id, name, h.path(id)} }
	return []group{
		{"Now", []pageOf{
			{"overview", "Overview", h.path()},
			to("doctor", "Doctor"), to("relays", "Relays"),
			to("consumers", "Consumers"),
		}},
		{"To decide", []pageOf{
			to("keys", "Blocked keys"), to("failures", "Failures"), to("topics", "Topics"),
			to("scheduled", "Scheduled"), to("idempotency", "Idempotency keys"),
		}},
		{"To look up", []pageOf{to("search", "Search"), to("archive", "Archive"), to("audit", "Audit")}},
	}
}

// said writes what is in backticks as code.
func said(text string) template.HTML {
	parts := strings.Split(text, "`")
	if len(parts)%2 == 0 { // a backtick without its pair is one
		return template.HTML(template.HTMLEscapeString(text))
	}
	var b strings.Builder
	for i, part := range parts {
		part = template.HTMLEscapeString(part)
		if i%2 == 1 {
			part = "<code>" + part + "</code>"
		}
		b.WriteString(part)
	}
	return template.HTML(b.String())
}

// longSentence is the length from which a sentence behind a code is folded.
const longSentence = 120

// sentence returns an error without the code that it begins with.
func sentence(code, text string) string {
	if rest, ok := strings.CutPrefix(text, code+": "); ok && code != "" {
		return rest
	}
	return text
}
