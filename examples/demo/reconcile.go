package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/examples/email/mailbox"
	"github.com/effectonce/effectonce/examples/payments/cards"
	"github.com/effectonce/effectonce/internal/pgschema"
)

// evidence is the input of reconcile. None of it comes from the workers' code: SQL over the tables, the topic's records
// as another client library reads them, the answers that the customers got, the server's mails and the bank's ledger.
type evidence struct {
	db        *pgxpool.Pool
	prefix    string
	scan      func(ctx context.Context) ([]*kgo.Record, error)
	answers   map[string]payment
	replays   int64
	flagged   int64 // answers with Idempotent-Replayed: true
	mails     []mailbox.Mail
	charges   []cards.Charge // the bank's ledger
	consumers []string
}

func (s *stack) evidence(customers *customers) evidence {
	return evidence{
		db: s.db, prefix: s.prefix, scan: s.topic.scan, answers: customers.answers, replays: customers.replays.Load(),
		flagged: customers.flagged.Load(), mails: s.box.Mails(), charges: s.bank.Ledger(),
		consumers: []string{"email", "ledger"},
	}
}

// report is the result of reconcile.
type report struct {
	payments, replays             int64
	sum                           int64
	outbox, claims                int64
	records, events               int
	inbox                         map[string]int64
	entries, booked, balance      int64
	pairs                         int64
	sent, unsent                  int64
	charges, charged, recovered   int64
	mailsAccepted, mailsDifferent int
	notes                         string
	differences                   []string
}

// storedPayment is a row of the table payment.
type storedPayment struct {
	payment
	event string
}

// reconcile compares the evidence. Differences are in the report; an error means that it could not compare.
func reconcile(ctx context.Context, e evidence) (*report, error) {
	r := &report{inbox: map[string]int64{}, replays: e.replays}
	paid, err := r.readPayments(ctx, e)
	if err != nil {
		return nil, err
	}
	err = e.db.QueryRow(ctx, e.q(queryFigures)).Scan(&r.outbox, &r.claims, &r.entries, &r.booked, &r.balance, &r.sent,
		&r.unsent)
	if err != nil {
		return nil, err
	}
	if r.outbox+r.claims > 0 {
		r.addDifference("%d events are still in the outbox, with %d journal entries", r.outbox, r.claims)
	}
	records, err := e.scan(ctx)
	if err != nil {
		return nil, err
	}
	r.checkRecords(records, paid)
	if err := r.readInbox(ctx, e); err != nil {
		return nil, err
	}
	if err := r.readEffects(ctx, e); err != nil {
		return nil, err
	}
	r.checkMails(e.mails, paid)
	if e.flagged < e.replays {
		r.addDifference("%d requests were sent twice, and %d answers say so", e.replays, e.flagged)
	}
	return r, r.checkCharges(ctx, e)
}

// checkCharges compares the bank's ledger with the charges that the payments name.
func (r *report) checkCharges(ctx context.Context, e evidence) error {
	rows, err := e.db.Query(ctx, e.q(queryCharges))
	if err != nil {
		return err
	}
	var id, charge string
	var amount int64
	unpaid := map[string]string{} // payment by charge and amount
	if _, err := pgx.ForEachRow(rows, []any{&id, &charge, &amount}, func() error {
		unpaid[fmt.Sprint(charge, " of ", amount)] = id
		return nil
	}); err != nil {
		return err
	}
	var stray []string
	for _, c := range e.charges {
		r.charges++
		r.charged += c.Amount
		ids := fmt.Sprint(c.Reference, " of ", c.Amount)
		if id, ok := unpaid[ids]; !ok || !strings.HasSuffix(c.Key, id) {
			stray = append(stray, ids)
		}
		delete(unpaid, ids)
	}
	r.addList("charges without a payment", stray)
	r.addList("payments without a charge", slices.Collect(maps.Values(unpaid)))
	var open int64
	if err := e.db.QueryRow(ctx, e.q(queryUnfinished)).Scan(&open); err != nil {
		return err
	}
	if open > 0 {
		r.addDifference("the outcome of %d requests is still unknown", open)
	}
	return e.db.QueryRow(ctx, e.q(queryRecovered)).Scan(&r.recovered)
}

func (e evidence) q(query string) string { return pgschema.Expand(query, e.prefix) }

func (r *report) addDifference(format string, args ...any) {
	r.differences = append(r.differences, fmt.Sprintf(format, args...))
}

// addList adds a difference that names the first few ids.
func (r *report) addList(what string, ids []string) {
	if len(ids) == 0 {
		return
	}
	slices.Sort(ids)
	const most = 3
	shown := strings.Join(ids[:min(most, len(ids))], ", ")
	if len(ids) > most {
		shown += ", ..."
	}
	r.addDifference("%s: %d (%s)", what, len(ids), shown)
}

// readPayments compares the table with the answers of the API.
func (r *report) readPayments(ctx context.Context, e evidence) (map[string]storedPayment, error) {
	rows, err := e.db.Query(ctx, e.q(queryPayments))
	if err != nil {
		return nil, err
	}
	paid := map[string]storedPayment{}
	var unanswered, changed, missing []string
	var k storedPayment
	_, err = pgx.ForEachRow(rows, []any{&k.ID, &k.event, &k.Account, &k.Amount, &k.Currency}, func() error {
		paid[k.ID] = k
		r.payments++
		r.sum += k.Amount
		answer, ok := e.answers[k.ID]
		switch {
		case !ok:
			unanswered = append(unanswered, k.ID)
		case answer != k.payment:
			changed = append(changed, k.ID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range e.answers {
		if _, ok := paid[id]; !ok {
			missing = append(missing, id)
		}
	}
	r.addList("payments without an answer of the API", unanswered)
	r.addList("payments that differ from the API's answer", changed)
	r.addList("payments that the API accepted and the table lacks", missing)
	return paid, nil
}

// checkRecords checks that the topic holds the event of every payment, with the payment's values, and no other, and
// that the first occurrences of a lane's events are in the order of their sequence numbers.
func (r *report) checkRecords(records []*kgo.Record, paid map[string]storedPayment) {
	byEvent := make(map[string]storedPayment, len(paid))
	for _, k := range paid {
		byEvent[k.event] = k
	}
	r.records = len(records)
	seen, last := map[string]bool{}, map[string]int64{}
	var unknown, wrong, outOfOrder, missing []string
	for _, record := range records {
		id := header(record, "ce_id")
		k, ok := byEvent[id]
		var payload payment
		switch {
		case !ok:
			unknown = append(unknown, fmt.Sprintf("%d/%d", record.Partition, record.Offset))
			continue
		case json.Unmarshal(record.Value, &payload) != nil || payload != k.payment || string(record.Key) != k.Account:
			wrong = append(wrong, id)
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		lane := fmt.Sprint(record.Partition, header(record, "ce_epoch"), header(record, "ce_lane"))
		seq, err := strconv.ParseInt(header(record, "ce_laneseq"), 10, 64)
		if err != nil || seq <= last[lane] {
			outOfOrder = append(outOfOrder, id)
		}
		last[lane] = max(last[lane], seq)
	}
	r.events = len(seen)
	for id := range byEvent {
		if !seen[id] {
			missing = append(missing, id)
		}
	}
	r.addList("records without a payment (partition/offset)", unknown)
	r.addList("records that differ from their payment", wrong)
	r.addList("events that first appear out of order", outOfOrder)
	r.addList("events that are not in the topic", missing)
}

func (r *report) readInbox(ctx context.Context, e evidence) error {
	rows, err := e.db.Query(ctx, e.q(queryInbox))
	if err != nil {
		return err
	}
	var consumer string
	var all, matched int64
	_, err = pgx.ForEachRow(rows, []any{&consumer, &all, &matched}, func() error {
		r.inbox[consumer] = all
		if all != matched {
			r.addDifference("the inbox has %d rows of %s without a payment", all-matched, consumer)
		}
		return nil
	})
	for _, c := range e.consumers {
		if r.inbox[c] != r.payments {
			r.addDifference("the inbox has %d rows of %s for %d payments", r.inbox[c], c, r.payments)
		}
	}
	return err
}

func (r *report) readEffects(ctx context.Context, e evidence) error {
	for _, q := range []struct {
		query, what string
		pairs       bool
	}{
		{queryPairs, "payments without exactly one ledger pair", true},
		{queryStrayEntries, "ledger entries without a payment", false},
		{queryNotifications, "payments without exactly one sent notification", false},
		{queryStrayNotifications, "notifications without a payment", false},
	} {
		rows, err := e.db.Query(ctx, e.q(q.query))
		if err != nil {
			return err
		}
		var ids []string
		var id string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			ids = append(ids, fmt.Sprintf("%s has %d", id, n))
			return nil
		}); err != nil {
			return err
		}
		if q.pairs {
			r.pairs = r.payments - int64(len(ids))
		}
		r.addList(q.what, ids)
	}
	if r.balance != 0 || r.booked != r.sum {
		r.addDifference("the ledger books %d of %d, and its balance is %d", r.booked, r.sum, r.balance)
	}
	return nil
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// checkMails counts the accepted mails by the payment that the subject names.
func (r *report) checkMails(mails []mailbox.Mail, paid map[string]storedPayment) {
	got := map[string]int{}
	var unknown, none, several []string
	for _, m := range mails {
		id := anyUUID.FindString(m.Subject)
		if _, ok := paid[id]; !ok {
			unknown = append(unknown, m.MessageID)
		}
		got[id] += m.Accepted
		r.mailsAccepted += m.Accepted
	}
	r.mailsDifferent = len(mails)
	for _, id := range slices.Sorted(maps.Keys(paid)) {
		switch {
		case got[id] == 0:
			none = append(none, id)
		case got[id] > 1:
			several = append(several, id)
		}
	}
	r.addList("mails without a payment", unknown)
	r.addList("payments without a mail", none)
	r.addList("payments with more than one mail", several)
}
