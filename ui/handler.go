package ui

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/effectonce/effectonce/ui/internal/reads"
)

// Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	most      reads.Limits
	cfg       Config
	databases []*reads.Database
	mux       *http.ServeMux
	cross     *http.CrossOriginProtection
	pages     map[string]*template.Template
	replays   replays
}

// Run samples the figures of the plots until ctx ends. Then it stops the replays that the pages have started, and waits
// for them and for the reads under way, for ten seconds at most. Without Run the plots have only figures that viewers
// requested. It returns nil.
func (h *Handler) Run(ctx context.Context) error {
	tick := time.NewTicker(reads.SampleEvery)
	defer tick.Stop()
	defer h.settle(10 * time.Second)
	for {
		for _, d := range h.databases {
			_, _, _ = d.Moves.Get(ctx, 0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (h *Handler) settle(atMost time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	h.replays.end(ctx)
	for _, d := range h.databases {
		d.Settle(ctx)
	}
}

// named returns the database with a name; nil: none.
func (h *Handler) named(name string) *reads.Database {
	for _, d := range h.databases {
		if d.Name == name {
			return d
		}
	}
	return nil
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
