package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// print writes the table and the verdict.
func (r *report) print(out io.Writer) {
	line := func(what string, n int64, format string, args ...any) {
		text := fmt.Sprintf("  %-20s %11s   %s", what, grouped(n), fmt.Sprintf(format, args...))
		fmt.Fprintln(out, strings.TrimRight(text, " "))
	}
	fmt.Fprintln(out)
	line("payments", r.payments, "of %s cents; %d requests came twice and were one payment", grouped(r.sum), r.replays)
	line("card charges", r.charges, "of %s cents, by the bank's own ledger; completed by recovery: %d",
		grouped(r.charged), r.recovered)
	line("outbox rows left", r.outbox, "")
	line("records in Kafka", int64(r.records), "of %s events: %s duplicates", grouped(int64(r.events)),
		grouped(int64(r.records-r.events)))
	for _, consumer := range slices.Sorted(maps.Keys(r.inbox)) {
		line("inbox rows of "+consumer, r.inbox[consumer], "")
	}
	line("ledger pairs", r.pairs, "of %s cents; the balance of all entries is %d", grouped(r.booked), r.balance)
	line("notifications sent", r.sent, "and %d not", r.unsent)
	line("mails accepted", int64(r.mailsAccepted), "%s", r.notes)
	fmt.Fprintln(out)
	if len(r.differ) == 0 {
		fmt.Fprintln(out, "Every payment has exactly one ledger pair and one mail, and every card one charge.")
		return
	}
	fmt.Fprintln(out, "The figures differ:")
	for _, d := range r.differ {
		fmt.Fprintln(out, "  - "+d)
	}
}

// grouped is a number as people read it: 1,234,567.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
