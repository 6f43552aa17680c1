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
	line("payments", r.payments, "of %s cents; %d requests were sent twice", grouped(r.sum), r.replays)
	line("card charges", r.charges, "of %s cents, by the bank's ledger; completed by recovery: %d",
		grouped(r.charged), r.recovered)
	line("outbox rows left", r.outbox, "")
	line("records in Kafka", int64(r.records), "of %s events: %s duplicates", grouped(int64(r.events)),
		grouped(int64(r.records-r.events)))
	for _, consumer := range slices.Sorted(maps.Keys(r.inbox)) {
		line("inbox rows of "+consumer, r.inbox[consumer], "")
	}
	line("ledger pairs", r.pairs, "of %s cents; the balance of all entries is %d", grouped(r.booked), r.balance)
	line("notifications sent", r.sent, "and %d not sent", r.unsent)
	line("mails accepted", int64(r.mailsAccepted), "%s", r.notes)
	fmt.Fprintln(out)
	if len(r.differences) == 0 {
		fmt.Fprintln(out, "Every payment has exactly one ledger pair and one mail, and every card one charge.")
		return
	}
	fmt.Fprintln(out, "The results differ:")
	for _, d := range r.differences {
		fmt.Fprintln(out, "  - "+d)
	}
}

// grouped formats a number with separators: 1,234,567.
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
