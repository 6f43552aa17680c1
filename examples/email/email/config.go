package email

import (
	"cmp"
	"errors"
	"fmt"
	netmail "net/mail"
	"regexp"
	"time"

	"github.com/effectonce/effectonce/examples/worker"
)

// OnUnknown says what to do with a mail that may have been accepted when there is no Lookup.
type OnUnknown int

const (
	// Hold sets the status unknown and leaves the mail to an operator. It arrives at most once.
	Hold OnUnknown = iota
	// Resend sends the mail again with the same Message-ID. It arrives at least once.
	Resend
)

// Config configures the worker. Provider is required, and the fields that worker.Config requires.
type Config struct {
	worker.Config
	// Provider sends the mails.
	Provider Provider
	// Lookup asks the provider whether it has accepted a mail. Nil: OnUnknown decides.
	Lookup Lookup
	// OnUnknown is ignored with a Lookup. Default Hold.
	OnUnknown OnUnknown
	// From is the sender's address; its domain is also that of the Message-IDs. Default receipts@effectonce.example.
	From string
	// RecipientDomain is the domain of the recipients' addresses; account ids are the local parts. Default
	// customers.example.
	RecipientDomain string
	// Senders is the number of mails that are sent concurrently. Default 4.
	Senders int
	// SendTimeout bounds one attempt. Default 20 s.
	SendTimeout time.Duration
	// Lease is how long an attempt belongs to its sender. After that its outcome counts as unknown. At least twice
	// SendTimeout, so that a sender has stopped before another begins. Default 60 s.
	Lease time.Duration
	// PollEvery is the interval of polling for due notifications. Those that this process writes wake a sender at once.
	// Default 250 ms.
	PollEvery time.Duration
	// Settled is how long after an attempt without an answer Lookup may not know a mail yet that the provider has or
	// will have accepted: the time for which the provider works at a mail, and for which its query lags behind. Until
	// then nobody asks. Default 10 min; negative: none, for a Lookup that is right at once.
	Settled time.Duration
	// Backoff is the wait after the first failed attempt; it doubles up to five minutes, with jitter. Default 1 s.
	Backoff time.Duration
	// GiveUpAfter is the age at which a mail that was not accepted gets the status failed. Default 72 h; negative:
	// never.
	GiveUpAfter time.Duration
}

var domain = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

func (c Config) withDefaults() (Config, error) {
	c.From = cmp.Or(c.From, "receipts@effectonce.example")
	c.RecipientDomain = cmp.Or(c.RecipientDomain, "customers.example")
	c.Senders = cmp.Or(c.Senders, 4)
	c.SendTimeout = cmp.Or(c.SendTimeout, 20*time.Second)
	c.Lease = cmp.Or(c.Lease, max(time.Minute, 2*c.SendTimeout))
	c.PollEvery = cmp.Or(c.PollEvery, 250*time.Millisecond)
	c.Settled = cmp.Or(c.Settled, 10*time.Minute)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.GiveUpAfter = cmp.Or(c.GiveUpAfter, 72*time.Hour)
	from, err := netmail.ParseAddress(c.From)
	switch {
	case c.Provider == nil:
		return c, errors.New("email: Provider is required: NewSMTP makes one")
	case err != nil || from.Address != c.From:
		return c, fmt.Errorf("email: From %q: want an address without a name, such as receipts@example.com", c.From)
	case !domain.MatchString(c.RecipientDomain):
		return c, fmt.Errorf("email: RecipientDomain %q: want a domain in lower case, such as example.com",
			c.RecipientDomain)
	case c.OnUnknown != Hold && c.OnUnknown != Resend:
		return c, fmt.Errorf("email: OnUnknown is %d: want Hold or Resend", c.OnUnknown)
	case c.Senders < 1 || c.Senders > 100:
		return c, fmt.Errorf("email: Senders is %d: want 1 to 100", c.Senders)
	case c.SendTimeout < time.Millisecond || c.PollEvery < time.Millisecond || c.Backoff < time.Millisecond:
		return c, errors.New("email: SendTimeout, PollEvery and Backoff must be at least 1 ms, or zero for their " +
			"defaults")
	case c.Lease < 2*c.SendTimeout:
		return c, fmt.Errorf("email: Lease is %v: want at least twice SendTimeout (%v), or two senders may overlap",
			c.Lease, c.SendTimeout)
	}
	return c, nil
}
