// Package operator is what people see of the idempotency keys in Postgres and change in them, and what the relay
// command and the pages call: the operations of which nobody knows the outcome. It works on the database alone. For
// other stores there are store.Lister and store.ClaimStuck.
package operator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/audit"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// ErrNotStuck: what an Operator was asked to act on is not stuck (any more).
var ErrNotStuck = fmt.Errorf("%w: it was decided meanwhile, recovery has it, or it never was; list what is stuck",
	store.ErrNotStuck)

// CountLimit is where counts end.
const CountLimit = 100_000

// findPairs is how many pairs of tenant and operation Find looks up a key for.
const findPairs = 10_000

// Operator is what a person may do with operations that recovery gave up. Every change needs a reason and leaves a row
// in idempotency_audit, in the same statement. Its methods may be called from several goroutines.
type Operator struct {
	db     *pgxpool.Pool
	prefix string
	name   string
}

// New makes an Operator. Its name is the person's, for the audit. An empty schema is the connection's search_path.
func New(db *pgxpool.Pool, schema, name string) (*Operator, error) {
	prefix, err := pgschema.Prefix(schema)
	switch {
	case err != nil:
		return nil, fmt.Errorf("pgstore: %w", err)
	case db == nil:
		return nil, errors.New("pgstore: the operator's pool is nil")
	case strings.TrimSpace(name) == "":
		return nil, errors.New("pgstore: the operator's name is empty: the audit records it")
	}
	return &Operator{db, prefix, name}, nil
}

// Operation is one of a key, as it is listed: without its input, its answer, and the data of its steps.
type Operation struct {
	Tenant    string            `json:"tenant"`
	Operation string            `json:"operation"`
	Key       string            `json:"key"`
	State     idempotency.State `json:"state"`
	Stage     idempotency.Stage `json:"stage"`
	Stuck     bool              `json:"stuck"`          // recovery gave it up
	Attempts  int               `json:"attempts"`       // of recovery
	Age       time.Duration     `json:"age"`            // since its first claim
	Reason    string            `json:"reason"`         // why the last attempt failed
	Open      string            `json:"open_step"`      // of which nobody knows the outcome
	Asked     string            `json:"downstream_key"` // by which the provider can be asked about it
	// Due is when recovery takes it, or the lease of whoever has it ends; nil: never.
	Due        *time.Time `json:"due"`
	Code       int        `json:"code,omitempty"` // of its answer, as Failure and Resource
	Failure    string     `json:"failure,omitempty"`
	Resource   string     `json:"resource,omitempty"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

// scanOperation reads a row of a list, and what stands before its columns.
func scanOperation(row pgx.CollectableRow, before ...any) (o Operation, err error) {
	var age int64
	var steps []byte
	err = row.Scan(append(before, &o.Tenant, &o.Operation, &o.Key, &o.State, &o.Stage, &o.Stuck, &o.Attempts, &age,
		&o.Reason, &steps, &o.Due, &o.Code, &o.Failure, &o.Resource, &o.FinishedAt)...)
	if err != nil {
		return o, err
	}
	o.Age = time.Duration(age) * time.Microsecond
	var known []store.Step
	if steps != nil {
		if err := json.Unmarshal(steps, &known); err != nil {
			return o, fmt.Errorf("the steps of an operation: %w", err)
		}
	}
	for _, s := range known {
		if s.State == store.StepSent || s.State == store.StepUndoing {
			o.Open, o.Asked = s.Name, s.Key
		}
	}
	return o, nil
}

// Filter chooses operations. The zero value is the first hundred of all.
type Filter struct {
	Operation string // empty: any
	Limit     int    // default 100
}

// Stuck lists operations that recovery gave up, the oldest first; where there are more than the limit, any of them.
func (o *Operator) Stuck(ctx context.Context, f Filter) ([]Operation, error) {
	return o.list(ctx, "listing stuck operations", sqlStuck, f)
}

// Unknown lists operations whose outcome recovery finds out: what is due next comes first.
func (o *Operator) Unknown(ctx context.Context, f Filter) ([]Operation, error) {
	return o.list(ctx, "listing unknown operations", sqlUnknown, f)
}

func (o *Operator) list(ctx context.Context, what, statement string, f Filter) ([]Operation, error) {
	return collect(ctx, o, what, func(row pgx.CollectableRow) (Operation, error) { return scanOperation(row) },
		statement, f.Operation, cmp.Or(max(f.Limit, 0), admin.DefaultLimit))
}

// Found is what Find has found.
type Found struct {
	Operations []Operation `json:"operations"`
	// Unsearched says, a sentence each, where there may be more, for want of an index.
	Unsearched []string `json:"unsearched"`
}

// Find returns the operations of all tenants that have this key, in whatever state. It looks the key up for the first
// 10,000 pairs of tenant and operation that there are.
func (o *Operator) Find(ctx context.Context, key string) (f Found, err error) {
	if (idempotency.Key{Operation: "any", Value: key}).Check() != nil {
		return f, nil // no operation has such a key
	}
	pairs := int64(0)
	_, err = collect(ctx, o, "finding a key", func(row pgx.CollectableRow) (bool, error) {
		var pair int64
		var there bool
		one, err := scanOperation(row, &pair, &there)
		if pairs = max(pairs, pair); there {
			f.Operations = append(f.Operations, one)
		}
		return there, err
	}, sqlFind, key, findPairs)
	if pairs >= findPairs {
		f.Unsearched = append(f.Unsearched, "The key was looked up for the first "+strconv.Itoa(findPairs)+
			" pairs of tenant and operation alone: there is no index of idempotency keys by themselves.")
	}
	return f, err
}

// Counts are what is open.
type Counts struct {
	// Each ends at CountLimit.
	Stuck, Unknown, InProgress int64
	// Overdue is how many have been due for more than two minutes: no recovery worker takes them.
	Overdue          int64
	OldestInProgress time.Duration // since its first claim; 0: none
}

// Count counts what is open. It reads the rows of unfinished keys alone.
func (o *Operator) Count(ctx context.Context) (Counts, error) {
	list, err := collect(ctx, o, "counting open operations", func(row pgx.CollectableRow) (c Counts, err error) {
		var oldest int64
		err = row.Scan(&c.Stuck, &c.Unknown, &c.InProgress, &oldest, &c.Overdue)
		c.OldestInProgress = time.Duration(oldest) * time.Microsecond
		return c, err
	}, sqlCount, CountLimit)
	if err != nil {
		return Counts{}, err
	}
	return list[0], nil
}

// Retry has recovery try a stuck operation once more, now. It fails with ErrNotStuck.
func (o *Operator) Retry(ctx context.Context, k idempotency.Key, reason string) error {
	if err := k.Check(); err != nil {
		return fmt.Errorf("pgstore: retry: %w", err)
	}
	n, err := o.change(ctx, "retry", reason, sqlRetry, k.Operation, k.Tenant, k.Value, rand.Text(), byHand(reason),
		o.name, reason)
	return decided("retry", n, err)
}

// RetryAll is Retry of all stuck operations of a name, in one transaction. It returns how many.
func (o *Operator) RetryAll(ctx context.Context, operation, reason string) (operations int64, err error) {
	return o.change(ctx, "retry", reason, sqlRetry, operation, nil, nil, rand.Text(), byHand(reason), o.name, reason)
}

// byHand is what an operation has for a reason until recovery has tried it.
func byHand(reason string) string { return "by hand: " + reason }

// ErrCode: callers cannot be told this code for as long as the answer is kept.
var ErrCode = errors.New("want a status from 200 to 499: what is kept is no failure of the server")

// Answer is what the callers of an operation are told that has happened, or with a failure was refused for good. An
// empty body is none. It fails with ErrCode, and if the body is not the JSON that its type says.
func Answer(code int, failure, resource, contentType string, body []byte) (res idempotency.Result, err error) {
	if code < 200 || code > 499 {
		return res, fmt.Errorf("%d: %w", code, ErrCode)
	}
	kind, _, _ := mime.ParseMediaType(contentType)
	if len(body) > 0 && (kind == "application/json" || strings.HasSuffix(kind, "+json")) && !json.Valid(body) {
		return res, fmt.Errorf("the body is not JSON, as its type %s says", contentType)
	}
	res = idempotency.Result{Code: code, Failure: failure, Resource: resource}
	if len(body) > 0 {
		res.Body, res.Header = body, map[string][]string{"Content-Type": {contentType}}
	}
	return res, nil
}

// Complete says that a stuck operation has happened, or was refused for good: its callers get res, as if the service
// had given it. What the service keeps of it itself is not made by this. It fails with ErrNotStuck.
func (o *Operator) Complete(ctx context.Context, k idempotency.Key, res idempotency.Result, reason string) error {
	if err := errors.Join(k.Check(), res.Check()); err != nil {
		return fmt.Errorf("pgstore: complete: %w", err)
	}
	var header any
	if res.Header != nil {
		b, err := json.Marshal(res.Header)
		if err != nil {
			return fmt.Errorf("pgstore: complete: %w", err)
		}
		header = string(b)
	}
	n, err := o.change(ctx, "complete", reason, sqlComplete, k.Tenant, k.Operation, k.Value, rand.Text(), o.name,
		res.Code, res.Schema, res.Failure, res.Resource, header, res.Body, reason)
	return decided("complete", n, err)
}

// Free says that a stuck operation has not happened, and that nothing under way can make it happen: its key is free,
// and its caller may do it anew. It fails with ErrNotStuck.
func (o *Operator) Free(ctx context.Context, k idempotency.Key, reason string) error {
	if err := k.Check(); err != nil {
		return fmt.Errorf("pgstore: free: %w", err)
	}
	n, err := o.change(ctx, "free", reason, sqlFree, k.Tenant, k.Operation, k.Value, o.name, reason)
	return decided("free", n, err)
}

// change runs a statement that changes stuck operations and writes their audit, and returns how many.
func (o *Operator) change(ctx context.Context, action, reason, statement string, args ...any) (n int64, err error) {
	if strings.TrimSpace(reason) == "" {
		return 0, fmt.Errorf("pgstore: %s: the reason is empty: the audit records it", action)
	}
	if len(reason) > admin.MostReason {
		return 0, fmt.Errorf("pgstore: %s: the reason has %d bytes, and may have %d", action, len(reason),
			admin.MostReason)
	}
	changed, err := collect(ctx, o, action, pgx.RowTo[int64], statement, args...)
	if err != nil {
		return 0, err
	}
	return changed[0], nil
}

// decided is what became of a change of one operation.
func decided(action string, n int64, err error) error {
	if err == nil && n == 0 {
		err = fmt.Errorf("pgstore: %s: %w", action, ErrNotStuck)
	}
	return err
}

// Audit returns the last actions, newest first, at most limit.
func (o *Operator) Audit(ctx context.Context, limit int) ([]admin.AuditEntry, error) {
	return collect(ctx, o, "reading the audit", func(row pgx.CollectableRow) (e admin.AuditEntry, err error) {
		err = row.Scan(&e.At, &e.Operator, &e.Action, &e.Reason, &e.Tenant, &e.Operation, &e.Key, &e.Detail)
		return e, err
	}, sqlAudit, limit)
}

// Access tells whether keys are here, and whether the connection's role may make any change: whether it may write the
// audit, to a database that is no standby.
func (o *Operator) Access(ctx context.Context) (here, mayChange bool, err error) {
	err = o.db.QueryRow(ctx, pgschema.Expand(sqlAccess, o.prefix)).Scan(&here, &mayChange)
	if err != nil {
		return false, false, fmt.Errorf("pgstore: asking what this role may do: %w", err)
	}
	return here, mayChange, nil
}

// collect returns the rows of a statement.
func collect[T any](ctx context.Context, o *Operator, what string, scan pgx.RowToFunc[T], statement string,
	args ...any,
) ([]T, error) {
	list, err := audit.Read(ctx, o.db, scan, pgschema.Expand(statement, o.prefix), args...)
	if err != nil {
		return nil, fmt.Errorf("pgstore: %s: %w", what, err)
	}
	return list, nil
}
