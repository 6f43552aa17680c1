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

// evidence is what the count looks at. None of it comes from the code that is counted: SQL over the tables, the records
// of the topic as another client library reads them, the answers that the customers got, and what the mail server took.
type evidence struct {
	db        *pgxpool.Pool
	prefix    string
	scan      func(ctx context.Context) ([]*kgo.Record, error)
	told      map[string]payment
	replays   int64
	flagged   int64 // answers that said they were replays
	mails     []mailbox.Mail
	charges   []cards.Charge // the bank's own ledger
	consumers []string
}

func (s *stack) evidence(buyers *customers) evidence {
	return evidence{
		db: s.db, prefix: s.prefix, scan: s.topic.scan, told: buyers.told, replays: buyers.replays.Load(),
		flagged: buyers.flagged.Load(), mails: s.box.Mails(), charges: s.bank.Ledger(),
		consumers: []string{"email", "ledger"},
	}
}

// report is the result.
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
	differ                        []string
}

// known is a payment as the table has it.
type known struct {
	payment
	event string
}

// reconcile counts. Its error says that it could not; what differs is in the report.
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
		r.differs("%d events are still in the outbox, with %d journal entries", r.outbox, r.claims)
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
		r.differs("%d requests came twice, and %d answers said so", e.replays, e.flagged)
	}
	return r, r.checkCharges(ctx, e)
}

// checkCharges compares the bank's ledger with the payments that say which charge is theirs.
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
		which := fmt.Sprint(c.Reference, " of ", c.Amount)
		if id, ok := unpaid[which]; !ok || !strings.HasSuffix(c.Key, id) {
			stray = append(stray, which)
		}
		delete(unpaid, which)
	}
	r.list("charges of no payment", stray)
	r.list("payments without a charge", slices.Collect(maps.Values(unpaid)))
	var open int64
	if err := e.db.QueryRow(ctx, e.q(queryUnfinished)).Scan(&open); err != nil {
		return err
	}
	if open > 0 {
		r.differs("the outcome of %d requests is still open", open)
	}
	return e.db.QueryRow(ctx, e.q(queryRecovered)).Scan(&r.recovered)
}

func (e evidence) q(query string) string { return pgschema.Expand(query, e.prefix) }

func (r *report) differs(format string, args ...any) {
	r.differ = append(r.differ, fmt.Sprintf(format, args...))
}

// list adds a difference with some of those whom it concerns.
func (r *report) list(what string, whom []string) {
	if len(whom) == 0 {
		return
	}
	slices.Sort(whom)
	const most = 3
	shown := strings.Join(whom[:min(most, len(whom))], ", ")
	if len(whom) > most {
		shown += ", ..."
	}
	r.differs("%s: %d (%s)", what, len(whom), shown)
}

// readPayments compares the table with what the customers were told.
func (r *report) readPayments(ctx context.Context, e evidence) (map[string]known, error) {
	rows, err := e.db.Query(ctx, e.q(queryPayments))
	if err != nil {
		return nil, err
	}
	paid := map[string]known{}
	var untold, changed, missing []string
	var k known
	_, err = pgx.ForEachRow(rows, []any{&k.ID, &k.event, &k.Account, &k.Amount, &k.Currency}, func() error {
		paid[k.ID] = k
		r.payments++
		r.sum += k.Amount
		told, ok := e.told[k.ID]
		switch {
		case !ok:
			untold = append(untold, k.ID)
		case told != k.payment:
			changed = append(changed, k.ID)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for id := range e.told {
		if _, ok := paid[id]; !ok {
			missing = append(missing, id)
		}
	}
	r.list("payments that no customer was told of", untold)
	r.list("payments that differ from what the customer was told", changed)
	r.list("payments that a customer was told of and that are not there", missing)
	return paid, nil
}

// checkRecords: every payment's event is in the topic, with the payment's values, and nothing else is; and where a
// lane's events appear for the first time, they are in the order of their numbers.
func (r *report) checkRecords(records []*kgo.Record, paid map[string]known) {
	byEvent := make(map[string]known, len(paid))
	for _, k := range paid {
		byEvent[k.event] = k
	}
	r.records = len(records)
	seen, last := map[string]bool{}, map[string]int64{}
	var strange, wrong, disordered, absent []string
	for _, record := range records {
		id := header(record, "ce_id")
		k, ok := byEvent[id]
		var said payment
		switch {
		case !ok:
			strange = append(strange, fmt.Sprintf("%d/%d", record.Partition, record.Offset))
			continue
		case json.Unmarshal(record.Value, &said) != nil || said != k.payment || string(record.Key) != k.Account:
			wrong = append(wrong, id)
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		lane := fmt.Sprint(record.Partition, header(record, "ce_epoch"), header(record, "ce_lane"))
		seq, err := strconv.ParseInt(header(record, "ce_laneseq"), 10, 64)
		if err != nil || seq <= last[lane] {
			disordered = append(disordered, id)
		}
		last[lane] = max(last[lane], seq)
	}
	r.events = len(seen)
	for id := range byEvent {
		if !seen[id] {
			absent = append(absent, id)
		}
	}
	r.list("records of no payment (partition/offset)", strange)
	r.list("records that differ from their payment", wrong)
	r.list("events that first appear out of order", disordered)
	r.list("events that are not in the topic", absent)
}

func (r *report) readInbox(ctx context.Context, e evidence) error {
	rows, err := e.db.Query(ctx, e.q(queryInbox))
	if err != nil {
		return err
	}
	var consumer string
	var all, ours int64
	_, err = pgx.ForEachRow(rows, []any{&consumer, &all, &ours}, func() error {
		r.inbox[consumer] = all
		if all != ours {
			r.differs("the inbox has %d rows of %s that belong to no payment", all-ours, consumer)
		}
		return nil
	})
	for _, c := range e.consumers {
		if r.inbox[c] != r.payments {
			r.differs("the inbox has %d rows of %s for %d payments", r.inbox[c], c, r.payments)
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
		{queryStrayEntries, "ledger entries of no payment", false},
		{queryNotifications, "payments without exactly one notification that was sent", false},
		{queryStrayNotifications, "notifications of no payment", false},
	} {
		rows, err := e.db.Query(ctx, e.q(q.query))
		if err != nil {
			return err
		}
		var whom []string
		var id string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			whom = append(whom, fmt.Sprintf("%s has %d", id, n))
			return nil
		}); err != nil {
			return err
		}
		if q.pairs {
			r.pairs = r.payments - int64(len(whom))
		}
		r.list(q.what, whom)
	}
	if r.balance != 0 || r.booked != r.sum {
		r.differs("the ledger books %d of %d, and its balance is %d", r.booked, r.sum, r.balance)
	}
	return nil
}

var anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// checkMails counts what the mail server has taken, by the payment that the subject names.
func (r *report) checkMails(mails []mailbox.Mail, paid map[string]known) {
	got := map[string]int{}
	var strange, none, several []string
	for _, m := range mails {
		id := anyUUID.FindString(m.Subject)
		if _, ok := paid[id]; !ok {
			strange = append(strange, m.MessageID)
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
	r.list("mails of no payment", strange)
	r.list("payments without a mail", none)
	r.list("payments with more than one mail", several)
}
