//go:build !unix

package main

import (
	"context"

	"github.com/effectonce/effectonce/relay"
)

// wakeOnSignal does nothing here: there is no signal for it.
func wakeOnSignal(context.Context, *relay.Relay) {}
