package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// overviewLine is the line of one of several outboxes.
type overviewLine struct {
	Outbox  string            `json:"outbox"`
	Labels  map[string]string `json:"labels,omitempty"`
	Backlog int64             `json:"backlog"`
	Oldest  time.Duration     `json:"oldest"`
	Held    int64             `json:"held"`
	Parked  int64             `json:"parked"`
	Relays  int               `json:"relays"` // relays that own lanes; 0 while the outbox is asleep
	Error   string            `json:"error,omitempty"`
}

// overviewAtOnce is how many outboxes are read at a time.
const overviewAtOnce = 16

// all: a status without --outbox shows a line for every outbox that is listed.
func (*statusCommand) all() {}

// overview shows every outbox. One that cannot be read has an error in its line.
func (c *statusCommand) overview(ctx context.Context, p *program) error {
	list, err := c.someOutboxes(ctx)
	if err != nil {
		return err
	}
	lines, errs := make([]overviewLine, len(list)), make([]error, len(list))
	var asking errgroup.Group
	asking.SetLimit(overviewAtOnce)
	for i, o := range list {
		asking.Go(func() error {
			lines[i], errs[i] = c.line(ctx, o)
			return nil // the others are read
		})
	}
	_ = asking.Wait()
	const head = "OUTBOX\tBACKLOG\tOLDEST\tHELD\tPARKED\tRELAYS\tERROR"
	err = writeList(p.stdout, c.JSON, lines, head, func(table io.Writer, l overviewLine) {
		if l.Error != "" {
			fmt.Fprintf(table, "%s\t-\t-\t-\t-\t-\t%s\n", shown(l.Outbox), l.Error)
			return
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%d\t%d\t-\n", shown(l.Outbox), l.Backlog, age(l.Oldest, l.Backlog > 0),
			l.Held, l.Parked, l.Relays)
	})
	if unread := slices.DeleteFunc(errs, func(err error) bool { return err == nil }); err == nil && len(unread) > 0 {
		return &unreadError{of: len(list), errs: unread}
	}
	return err
}

// unreadError is the error of an overview that has shown the errors of its outboxes. It has their exit code.
type unreadError struct {
	of   int
	errs []error
}

func (e *unreadError) Error() string {
	return fmt.Sprintf("%d of %d outboxes cannot be read, see above", len(e.errs), e.of)
}
func (e *unreadError) Unwrap() []error { return e.errs }

func (c *statusCommand) line(ctx context.Context, o namedOutbox) (overviewLine, error) {
	l := overviewLine{Outbox: o.name, Labels: o.labels}
	if o.wrong != nil {
		l.Error = o.wrong.Error()
		return l, o.wrong
	}
	st, err := c.of(o).status(ctx, c.Timeout)
	if err != nil {
		l.Error = strings.Join(strings.Fields(err.Error()), " ") // errors of pgx have several lines
		return l, err
	}
	l.Backlog, l.Oldest = st.Backlog, st.Oldest
	for _, lane := range st.Lanes {
		l.Held, l.Parked = l.Held+lane.Held, l.Parked+lane.Parked
	}
	for _, r := range st.Relays.List {
		if r.Owner != nil && len(r.Lanes) > 0 {
			l.Relays++
		}
	}
	return l, nil
}
