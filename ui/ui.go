// Package ui serves web pages for operators of outboxes, inboxes and idempotency keys: what is wrong, what it means,
// and the actions that repair it. The pages use the operator packages and the doctor only. The relay command can do the
// same, and each page shows its command.
//
// A Handler authorizes every request with Config.Authorize, and keeps an hour of figures in memory. The pages work
// without scripts; with scripts they refresh themselves.
package ui

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/effectonce/effectonce/ui/internal/reads"
)

var databaseName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}$`)

// New returns a Handler. It opens no connection.
func New(databases []Database, cfg Config) (*Handler, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(databases) == 0 {
		return nil, errors.New("ui: no database is given")
	}
	h := &Handler{cfg: cfg, cross: http.NewCrossOriginProtection(), most: reads.NewLimits()}
	of := reads.Config{Refresh: cfg.Refresh, Timeout: cfg.Timeout, Kafka: cfg.Kafka}
	names := map[string]bool{}
	for _, d := range databases {
		switch {
		case !databaseName.MatchString(d.Name):
			return nil, fmt.Errorf("ui: database name %q: want letters, digits, \"-\", \"_\" and \".\"", d.Name)
		case names[d.Name]:
			return nil, fmt.Errorf("ui: two databases are named %q", d.Name)
		case d.Pool == nil:
			return nil, fmt.Errorf("ui: database %q has no pool", d.Name)
		}
		names[d.Name] = true
		one, err := reads.New(reads.At(d), of, h.most)
		if err != nil {
			return nil, err
		}
		h.databases = append(h.databases, one)
	}
	if h.pages, err = parsePages(h); err != nil {
		return nil, err
	}
	h.mux = h.routes()
	return h, nil
}
