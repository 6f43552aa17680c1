package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

// Database is a database with an outbox, an inbox, idempotency keys, or several of these.
type Database struct {
	// Name identifies the database on pages and in URLs: letters, digits, "-", "_" and "."; unique.
	Name string
	// Pool connects to it. The pages can do what its role may do: with a read-only role they have no actions.
	Pool *pgxpool.Pool
	// Schema has the tables. Default: the connection's search_path.
	Schema string
	// Flags name the database in the commands that the pages show, such as "--outbox=orders". The pages add --schema
	// themselves.
	Flags []string
}

// Level is what a person may do. Each level includes the lower ones.
type Level int

const (
	// View shows everything except headers and payloads.
	View Level = iota + 1
	// Reveal also shows headers and payloads, each time for a reason that the audit records.
	Reveal
	// Operate also allows changes.
	Operate
)

// levels are the names in users' files.
var levels = []string{"view", "reveal", "operate"}

// String returns the name of the level.
func (l Level) String() string {
	if l < View || l > Operate {
		return "none"
	}
	return levels[l-1]
}

// ParseLevel parses a level's name: "view", "reveal" or "operate".
func ParseLevel(name string) (Level, error) {
	if i := slices.Index(levels, name); i >= 0 {
		return Level(i) + View, nil
	}
	return 0, fmt.Errorf("ui: level %q: want view, reveal or operate", name)
}

// Identity is the person behind a request.
type Identity struct {
	// Name is recorded in the audit. Required.
	Name string
	// Level is what the person may do. The zero Level allows nothing.
	Level Level
	// Scope limits what the person sees and changes. Nil: no limit. A person with a Scope cannot open pages that show
	// all topics, such as the overview.
	Scope *Scope
}

// Challenge is an error of Config.Authorize that makes the browser ask for a password. It is the WWW-Authenticate of a
// 401, such as `Basic realm="effectonce"`.
type Challenge string

func (Challenge) Error() string { return "say who you are" }

// Config configures a Handler. Authorize is required.
type Config struct {
	// Authorize identifies the person behind each request, also for stylesheets. Its error is shown to the client, with
	// status 403, or 401 if it is a Challenge. Required.
	Authorize func(*http.Request) (Identity, error)
	// Prefix is the Handler's path in a mux, such as "/ops/effectonce". Default: the root.
	Prefix string
	// Kafka is asked about topics and the ends of their partitions. Nil: the pages show nothing of Kafka.
	Kafka *kafka.Client
	// Docs is the address of docs/, for links to runbooks. Default: the project's.
	Docs string
	// TraceURL links an event to the trace of its append: an address with {trace_id} in it, such as
	// "https://traces.example/trace/{trace_id}". Default: no link.
	TraceURL string
	// Refresh is the age at which figures are read again for a viewer. All viewers share one read. Default: 5 s.
	Refresh time.Duration
	// Timeout bounds each read of a database, and a change. Default: 5 s.
	Timeout time.Duration
}

// prefixes are paths that need no escaping in a pattern of [http.ServeMux] and in URLs.
var prefixes = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)*$`)

func (c Config) withDefaults() (Config, error) {
	if c.Authorize == nil {
		return c, errors.New("ui: Config.Authorize is missing: it says who may come in, and nobody may without it")
	}
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if !prefixes.MatchString(c.Prefix) || path.Clean("/"+c.Prefix) != "/"+strings.TrimPrefix(c.Prefix, "/") {
		return c, fmt.Errorf("ui: Config.Prefix is %q: want a path such as /ops/effectonce, of letters, digits, dots, "+
			"dashes and underscores", c.Prefix)
	}
	if c.Docs == "" {
		c.Docs = "https://github.com/effectonce/effectonce/blob/main/docs"
	}
	c.Docs = strings.TrimSuffix(c.Docs, "/")
	if err := checkTraceURL(c.TraceURL); err != nil {
		return c, err
	}
	if c.Refresh <= 0 {
		c.Refresh = 5 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	return c, nil
}

// Scope limits what a person sees and changes. The zero Scope allows nothing.
type Scope struct {
	// Topics are names, or prefixes that end with "*"; "*" is all topics.
	Topics []string
	// Tenants are written in the same way; "" matches events without a tenant.
	Tenants []string
}

// sees reports whether an event or key with a topic is in the Scope. A nil Scope allows everything.
func (s *Scope) sees(tenant, topic string) bool {
	return s == nil || topic != "" && matches(s.Topics, topic) && matches(s.Tenants, tenant)
}

// whole reports whether all tenants of a topic are in the Scope.
func (s *Scope) whole(topic string) bool {
	return s == nil || matches(s.Topics, topic) && slices.Contains(s.Tenants, "*")
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		begin, many := strings.CutSuffix(p, "*")
		return p == name || many && strings.HasPrefix(name, begin)
	})
}

// traceID is the placeholder for the trace's id in Config.TraceURL.
const traceID = "{trace_id}"

func checkTraceURL(template string) error {
	if template == "" {
		return nil
	}
	u, err := url.Parse(strings.ReplaceAll(template, traceID, "0"))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || !strings.Contains(template, traceID) {
		return fmt.Errorf("ui: Config.TraceURL is %q: want an address such as https://traces.example/%s", template,
			traceID)
	}
	return nil
}
