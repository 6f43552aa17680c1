package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/verbs"
)

//go:embed templates/*.html static/*
var files embed.FS

// assetVersion is part of the static files' path, so that browsers may cache them without end.
var assetVersion = hashOf("static")

func hashOf(dir string) string {
	sum := sha256.New()
	_ = fs.WalkDir(files, dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			content, _ := files.ReadFile(name)
			fmt.Fprintf(sum, "%s %d\n", name, len(content))
			sum.Write(content)
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

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
		"path": func(parts ...any) string { return h.path(parts...) }, "query": query, "num": num, "rate": rate,
		"dur": dur, "since": since, "iso": iso, "utc": utc, "shown": verbs.Shown, "bytes": size, "b64": b64,
		"bytes64": func(n int64) string { return size(int(n)) },
		"runbook": func(section string) string { return h.cfg.Docs + "/runbooks/" + section },
		"seconds": func(s float64) string { return dur(time.Duration(s * float64(time.Second))) },
		"failed":  func(f doctor.Finding) bool { return f.Severity == doctor.Fail },
		"dict":    dict, "plural": plural,
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

// path returns the path of a page, with each part escaped.
func (h *Handler) path(parts ...any) string {
	var b strings.Builder
	b.WriteString(h.cfg.Prefix)
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(fmt.Sprint(p)))
	}
	if len(parts) == 0 {
		b.WriteString("/")
	}
	return b.String()
}

// query returns a query string of alternating names and values, without empty values.
func query(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" && pairs[i+1] != "0" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// dict passes several values to a template.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// num formats a whole number with thin spaces between thousands.
func num(n any) string {
	text := fmt.Sprint(n)
	if f, ok := n.(float64); ok {
		text = strconv.FormatFloat(math.Round(f), 'f', 0, 64)
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return sign + text
}

// rate formats a number per second.
func rate(f float64) string {
	switch {
	case f < 0:
		return "–"
	case f == 0 || f >= 10:
		return num(f)
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}

// dur formats a duration in at most its two largest units.
func dur(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func since(t time.Time) string { return dur(time.Since(t)) }

func iso(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// size formats a number of bytes; -1 is a tombstone.
func size(n int) string {
	switch {
	case n < 0:
		return "tombstone"
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// b64 encodes bytes that need not be text, for forms.
func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func unb64(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return "", errForm
	}
	return string(b), nil
}
