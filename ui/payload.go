package ui

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/effectonce/effectonce/ui/internal/format"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

// Limits of a shown payload, so that the browser stays usable. The command prints the rest.
const (
	mostText = 1 << 20
	mostHex  = 8 << 10
	mostEdit = 1 << 20
)

// content is a payload for display.
type content struct {
	Bytes    int
	Headers  [][2]string
	JSON     string // indented; empty: not JSON
	Text     string // empty: not text
	TextMore int    // bytes left out
	Hex      string
	HexMore  int
	Editable bool   // a form returns it unchanged
	Raw      string // for the form
	Was      string // Raw in base64
}

// decode makes a payload readable.
func decode(e reads.Event) *content {
	p := e.Payload
	c := &content{Bytes: e.Bytes}
	for _, h := range e.Headers {
		c.Headers = append(c.Headers, [2]string{verbs.Shown(h[0]), verbs.Shown(h[1])})
	}
	if p == nil {
		return c
	}
	c.Hex, c.HexMore = hex.Dump(p[:min(len(p), mostHex)]), max(len(p)-mostHex, 0)
	if !utf8.Valid(p) {
		return c
	}
	// A form sends line ends as CR and LF, and no other control characters.
	c.Editable = len(p) <= mostEdit && !bytes.ContainsFunc(p, func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.IsControl(r)
	})
	if c.Editable {
		c.Raw, c.Was = string(p), base64.StdEncoding.EncodeToString(p)
	}
	if len(p) > mostText {
		c.Text, c.TextMore = verbs.Visible(strings.ToValidUTF8(string(p[:mostText]), "")), len(p)-mostText
		return c
	}
	c.Text = verbs.Visible(string(p))
	if text, ok := format.Indent(string(p)); ok && len(text) <= 2*mostText {
		c.JSON = verbs.Visible(text)
	}
	return c
}
