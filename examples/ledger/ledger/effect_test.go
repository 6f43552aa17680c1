package ledger_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/contract"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outcome"
)

// fixture is a database with the ledger's tables, and the handler without a consumer.
type fixture struct {
	*pgtest.DB
	handler inbox.Handler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db := pgtest.New(t)
	if err := ledger.Tables().Prepare(db.Pool, db.Schema, false)(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db.Pool, ledger.Name, inbox.Config{Schema: db.Schema, OnFailure: inbox.Halt})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{DB: db, handler: in.Batch(ledger.Effect(db.Schema))}
}

func paymentEvent(t *testing.T, p contract.PaymentCreated) event.Event {
	t.Helper()
	e, err := event.NewJSON(event.Event{Topic: contract.Topic, Key: p.AccountID, Type: contract.TypePaymentCreated}, p)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func newPayment(amount int64) contract.PaymentCreated {
	return contract.PaymentCreated{PaymentID: event.NewID(), AccountID: "acc-1", Amount: amount, Currency: "EUR"}
}

// check fails unless the ledger has exactly that many pairs: two rows whose sum is zero.
func (f *fixture) check(t *testing.T, pairs int) {
	t.Helper()
	if n := pgtest.One[int](t, f.DB, "select count(*) from ledger_entry"); n != 2*pairs {
		t.Errorf("%d rows in the ledger, want %d", n, 2*pairs)
	}
	if n := pgtest.One[int](t, f.DB,
		`select count(*) from (select source_payment_id from ledger_entry group by source_payment_id
		having count(*) = 2 and sum(amount) = 0 and count(distinct currency) = 1) pair`); n != pairs {
		t.Errorf("%d pairs whose sum is zero, want %d", n, pairs)
	}
}

func TestBatchIsIdempotentByPayment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := newPayment(100), newPayment(7)
	a2 := paymentEvent(t, a) // another event for the same payment, in the same batch
	out, err := f.handler.Handle(t.Context(), []event.Event{paymentEvent(t, a), paymentEvent(t, b), a2})
	if err != nil || len(out) != 3 {
		t.Fatal(out, err)
	}
	f.check(t, 2)
	// The same payment in a later batch, in a third event.
	later := []event.Event{paymentEvent(t, b), paymentEvent(t, newPayment(1)), a2}
	if _, err := f.handler.Handle(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	f.check(t, 3)
	if got := pgtest.One[int64](t, f.DB, "select sum(amount) from ledger_entry where account_id = 'clearing' and "+
		"entry_type = 'payment_debit'"); got != 108 {
		t.Errorf("clearing was debited %d, want 108", got)
	}
}

func TestCompletesHalfAPair(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newPayment(100)
	f.Exec(t, `insert into ledger_entry (entry_type, source_payment_id, account_id, amount, currency, message_id)
		values ('payment_debit', $1, 'clearing', 100, 'EUR', $2)`, p.PaymentID, event.NewID())
	before := pgtest.One[string](t, f.DB, "select xmin::text || id from ledger_entry")
	if _, err := f.handler.Handle(t.Context(), []event.Event{paymentEvent(t, p)}); err != nil {
		t.Fatal(err)
	}
	f.check(t, 1)
	if after := pgtest.One[string](t, f.DB, "select xmin::text || id from ledger_entry where entry_type = "+
		"'payment_debit'"); after != before {
		t.Errorf("the existing row was rewritten: %s, before %s", after, before)
	}
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	first := contract.PaymentCreated{PaymentID: event.NewID(), AccountID: "acc-1", Amount: 100, Currency: "EUR"}
	for name, c := range map[string]struct {
		change     func(e *event.Event, p *contract.PaymentCreated)
		code, want string
	}{
		"amount": {
			func(_ *event.Event, p *contract.PaymentCreated) { p.Amount = 250 }, ledger.CodeAmount,
			"amount 100, and the event says 250",
		},
		"currency": {
			func(_ *event.Event, p *contract.PaymentCreated) { p.Currency = "USD" }, ledger.CodeCurrency,
			"currency EUR, and the event says USD",
		},
		"account": {
			func(_ *event.Event, p *contract.PaymentCreated) { p.AccountID = "b" }, ledger.CodeAccount,
			`account "acc-1", and the event says "b"`,
		},
		"tenant": {
			func(e *event.Event, _ *contract.PaymentCreated) { e.Tenant = "x" }, ledger.CodeTenant,
			`tenant "", and the event says "x"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			other := first
			var e event.Event
			c.change(&e, &other)
			second := paymentEvent(t, other)
			second.Tenant = e.Tenant
			good := paymentEvent(t, newPayment(5))
			// In one batch and across two: the events before the mismatch are booked.
			for range 2 {
				out, err := f.handler.Handle(t.Context(), []event.Event{
					paymentEvent(t, first), good, second,
					paymentEvent(t, newPayment(9)),
				})
				halt, ok := errors.AsType[*inbox.HaltError](err)
				if !ok || halt.Event.ID != second.ID || halt.Attempts != 1 && halt.Attempts != 2 {
					t.Fatalf("error %v, want a halt at %s", err, second.ID)
				}
				if _, code := outcome.Of(err); code != c.code || !strings.Contains(err.Error(), c.want) {
					t.Errorf("code %q, error %v: want %q, and both values: %s", code, err, c.code, c.want)
				}
				if out[2] != inbox.Undecided || out[3] != inbox.Undecided || out[1] == inbox.Undecided {
					t.Errorf("outcomes %v", out)
				}
				f.check(t, 2)
			}
			if n := pgtest.One[int](t, f.DB, "select count(*) from ledger_entry where source_payment_id = $1 and "+
				"abs(amount) = 100 and currency = 'EUR'", first.PaymentID); n != 2 {
				t.Errorf("%d rows of the payment have their first values, want 2", n)
			}
		})
	}
}

func TestInvalidPayloadIsTerminalAndNotQuoted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := event.NewID().String()
	body := func(id, account, amount, currency string) string {
		return `{"payment_id":"` + id + `","account_id":"` + account + `","amount":` + amount + `,"currency":"` +
			currency + `"}`
	}
	for name, c := range map[string]struct{ payload, typ, code string }{
		"no JSON":    {`hunter2`, contract.TypePaymentCreated, inbox.CodeMalformed},
		"tombstone":  {"", contract.TypePaymentCreated, inbox.CodeMalformed},
		"null":       {`null`, contract.TypePaymentCreated, inbox.CodeMalformed},
		"no UUID":    {body("hunter2", "a", "1", "EUR"), contract.TypePaymentCreated, inbox.CodeMalformed},
		"nil UUID":   {body(uuid.Nil.String(), "a", "1", "EUR"), contract.TypePaymentCreated, "invalid_payment_id"},
		"no account": {body(id, " ", "1", "EUR"), contract.TypePaymentCreated, "invalid_account_id"},
		"U+0000":     {body(id, `hunter2\u0000`, "1", "EUR"), contract.TypePaymentCreated, "invalid_account_id"},
		"zero":       {body(id, "a", "0", "EUR"), contract.TypePaymentCreated, "invalid_amount"},
		"negative":   {body(id, "a", "-31337", "EUR"), contract.TypePaymentCreated, "invalid_amount"},
		"fraction":   {body(id, "a", "31337.5", "EUR"), contract.TypePaymentCreated, inbox.CodeMalformed},
		"too large": {
			body(id, "a", "31337000000000000000000", "EUR"), contract.TypePaymentCreated,
			inbox.CodeMalformed,
		},
		"text amount":    {body(id, "a", `"31337"`, "EUR"), contract.TypePaymentCreated, inbox.CodeMalformed},
		"no currency":    {body(id, "a", "1", "hunter2"), contract.TypePaymentCreated, "invalid_currency"},
		"small currency": {body(id, "a", "1", "eur"), contract.TypePaymentCreated, "invalid_currency"},
		"other type":     {body(id, "a", "1", "EUR"), "PaymentRefunded", inbox.CodeUnknownType},
	} {
		e := event.Event{ID: event.NewID(), Topic: contract.Topic, Type: c.typ, Payload: []byte(c.payload)}
		_, err := f.handler.Handle(t.Context(), []event.Event{e})
		class, code := outcome.Of(err)
		if class != outcome.ClassTerminal || code != c.code {
			t.Errorf("%s: error %v, want the code %q", name, err, c.code)
		}
		if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "31337")) {
			t.Errorf("%s: the error quotes the payload: %v", name, err)
		}
	}
	f.check(t, 0)
}
