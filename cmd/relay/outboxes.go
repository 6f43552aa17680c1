package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/internal/secret"
)

// outboxList is the configuration file's key for a list of outboxes.
const outboxList = "outboxes"

// manyOutboxes has the settings that list several outboxes.
type manyOutboxes struct {
	Outbox   string `shown:"(none)" help:"Name of an outbox of the configuration file's list, or of --discover's."`
	Discover string `shown:"(none)" help:"Query that names outboxes, asked of --database-url: columns name, schema, database_url; others are labels."`

	file    string // the configuration file
	several bool   // outboxes are listed, by the file or by a query, and none is selected
}

// namedOutbox is one of several outboxes.
type namedOutbox struct {
	name    string
	url     secret.Value // not set: --database-url
	schema  string
	labels  map[string]string
	urlText string // its value when the list was read; it may contain a password
	wrong   error  // why its row of --discover is unusable; it has a name to be told by, and is not served
}

// labelName matches the label names that Prometheus accepts.
var labelName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_]*$`)

// outboxes returns the outboxes of the file and of the query, by name. A row of the query that is wrong does not hide
// the others, for tenants choose names; a list without a usable one is an error.
func (d database) outboxes(ctx context.Context) ([]namedOutbox, error) {
	listed, err := d.listed()
	var found []map[string]string
	if err == nil && d.Discover != "" {
		err = d.withPool(ctx, 30*time.Second, func(ctx context.Context, pool *pgxpool.Pool) (err error) {
			found, err = discover(ctx, pool, d.Discover)
			return withAdvice(err)
		})
	}
	if err != nil {
		return nil, err
	}
	list, names := make([]namedOutbox, 0, len(listed)+len(found)), map[string]bool{}
	var wrong []error
	for i, entry := range slices.Concat(listed, found) {
		o, err := d.outboxOf(entry)
		if err == nil && names[o.name] {
			err = service.Usage("two outboxes are named %q", o.name)
		}
		switch {
		case err != nil && i < len(listed):
			return nil, err
		case err != nil:
			err = fmt.Errorf("--discover, row %d: %w", i-len(listed)+1, err)
			o = namedOutbox{name: fmt.Sprintf("row %d of --discover", i-len(listed)+1), wrong: err}
			wrong = append(wrong, err)
		}
		names[o.name] = true
		list = append(list, o)
	}
	if len(wrong) > 0 && len(wrong) == len(list) {
		return nil, wrong[0]
	}
	slices.SortFunc(list, func(a, b namedOutbox) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// errNoneListed: --discover may be a query whose rows a policy hides, or of another database.
var errNoneListed = errors.New("no outbox is listed: does --discover find its rows?")

// someOutboxes is outboxes for a command that would show nothing of an empty list.
func (d database) someOutboxes(ctx context.Context) ([]namedOutbox, error) {
	list, err := d.outboxes(ctx)
	if err == nil && len(list) == 0 {
		err = errNoneListed
	}
	return list, err
}

func (d database) listed() ([]map[string]string, error) {
	if d.file == "" {
		return nil, nil
	}
	return service.List(d.file, outboxList, "name", "schema", "database-url", "database-url-file", "labels.")
}

// discover runs the query; null counts as missing. The simple protocol returns every type as text.
func discover(ctx context.Context, pool *pgxpool.Pool, query string) (entries []map[string]string, err error) {
	rows, err := pool.Query(ctx, query, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return nil, fmt.Errorf("--discover: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		entry := map[string]string{}
		for i, raw := range rows.RawValues() {
			column := rows.FieldDescriptions()[i].Name
			switch {
			case raw == nil:
				continue
			case column == "database_url":
				column = "database-url"
			case column != "name" && column != "schema":
				column = "labels." + column
			}
			entry[column] = string(raw)
		}
		entries = append(entries, entry)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("--discover: %w", err)
	}
	return entries, nil
}

func (d database) outboxOf(entry map[string]string) (namedOutbox, error) {
	o := namedOutbox{name: entry["name"], schema: entry["schema"], labels: map[string]string{}}
	if o.name == "" || len(o.name) > 200 {
		return o, service.Usage("every outbox wants a name of up to 200 characters, not %.40q", o.name)
	}
	switch {
	case entry["database-url"] != "" && entry["database-url-file"] != "":
		return o, service.Usage("outbox %q: set database-url or database-url-file", o.name)
	case entry["database-url"] != "":
		o.url = secret.Of(entry["database-url"])
	case entry["database-url-file"] != "":
		o.url = secret.InFile(entry["database-url-file"])
	case !d.DatabaseURL.IsSet():
		return o, service.Usage("outbox %q: database-url is missing, and so is --database-url, which stands in for it",
			o.name)
	}
	o.urlText = entry["database-url"] + "\n" + entry["database-url-file"]
	for key, value := range entry {
		label, is := strings.CutPrefix(key, "labels.")
		switch {
		case !is:
		case !labelName.MatchString(label), label == "outbox":
			return o, service.Usage("outbox %q: a label's name has letters, digits and _, and is not \"outbox\"",
				o.name)
		default:
			o.labels[label] = value
		}
	}
	return o, nil
}

// same reports whether a name means the same outbox in two lists.
func (o namedOutbox) same(other namedOutbox) bool {
	return o.urlText == other.urlText && o.schema == other.schema && maps.Equal(o.labels, other.labels) &&
		fmt.Sprint(o.wrong) == fmt.Sprint(other.wrong)
}

// of returns the database of an outbox: its own if it names one.
func (d database) of(o namedOutbox) database {
	d.manyOutboxes = manyOutboxes{Outbox: o.name, Discover: d.Discover, file: d.file}
	if o.url.IsSet() {
		d.DatabaseURL = o.url
	}
	if o.schema != "" {
		d.Schema = o.schema
	}
	return d
}

// where returns the flags that name the outbox, for commands in texts. The database's URL, which may have a password,
// must be in a file or a variable.
func (d database) where() (flags []string) {
	if file, err := filepath.Abs(d.file); err == nil && d.file != "" {
		flags = append(flags, "--config="+file)
	}
	if d.Outbox == "" {
		return flags
	}
	if d.Discover != "" {
		flags = append(flags, "--discover="+d.Discover)
	}
	return append(flags, "--outbox="+d.Outbox)
}

// choose makes d the database of --outbox. Without --outbox all outboxes are meant, which few commands accept.
func (d *database) choose(ctx context.Context, all bool) error {
	listed, err := d.listed()
	if err != nil {
		return err
	}
	several := d.Discover != "" || len(listed) > 0
	if d.Outbox == "" {
		if several && !all {
			return service.Usage("several outboxes are listed: say which, with --outbox=NAME")
		}
		d.several = several
		return nil
	}
	if !several {
		return service.Usage("--outbox wants a list: `%s` in the file of --config, or --discover", outboxList)
	}
	list, err := d.outboxes(ctx)
	if err != nil {
		return err
	}
	for _, o := range list {
		if o.name == d.Outbox {
			*d = d.of(o)
			return o.wrong
		}
	}
	return service.Usage("no outbox is named %q; there are %d", d.Outbox, len(list))
}
