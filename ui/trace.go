package ui

import (
	"regexp"
	"strings"
)

// traceparent is the header of W3C trace context: version, trace, span, flags.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-|$)`)

// traceOf returns the address of the trace in an event's headers, or "".
func traceOf(template string, headers [][2]string) string {
	for _, h := range headers {
		m := traceparent.FindStringSubmatch(h[1])
		if template != "" && strings.EqualFold(h[0], "traceparent") && m != nil && strings.Trim(m[1], "0") != "" {
			return strings.ReplaceAll(template, traceID, m[1])
		}
	}
	return ""
}
