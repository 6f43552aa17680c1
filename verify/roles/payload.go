package roles

import (
	"encoding/base64"
	"encoding/json"
)

// TooLargeBytes is the max.message.bytes of the topic that refuses large events.
const TooLargeBytes = 65_536

// Canary is in every payload. No log, metric or error may contain it.
const Canary = "canary-payload-5d1f0c"

// content is an event's payload.
type content struct {
	Business string `json:"business"`
	Poison   string `json:"poison,omitempty"`
	Canary   string `json:"canary"`
	Padding  []byte `json:"padding"` // random, so that it does not compress
}

func (w *writer) payload(business, poison string, size int) []byte {
	c := content{
		Business: business, Poison: poison, Canary: Canary,
		Padding: make([]byte, base64.StdEncoding.DecodedLen(size)),
	}
	for i := range c.Padding {
		c.Padding[i] = byte(w.draw.Uint32())
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // cannot happen
	}
	return b
}
