package dynamostore

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// maxDrift is the maximum relative error of a monotonic clock: NTP tolerates 500 ppm.
const maxDrift = 500e-6

// clock keeps the interval of the server's time from the Date of its responses, narrowed as by Marzullo's algorithm: a
// response was made within the second that Date names, before it was received and after its request was sent.
type clock struct {
	skew time.Duration

	mu               sync.Mutex
	sampled          bool
	computed         time.Time // time of the bounds; only its monotonic reading is used
	earliest, latest int64     // at that moment, in microseconds since 1970
}

// now returns the interval, false before the first response.
func (c *clock) now() (earliest, latest int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	earliest, latest = c.at(time.Now())
	return earliest, latest, c.sampled
}

// at returns the interval at a time.
func (c *clock) at(t time.Time) (earliest, latest int64) {
	passed := float64(t.Sub(c.computed).Microseconds())
	return c.earliest + int64(passed*(1-maxDrift)), c.latest + int64(passed*(1+maxDrift)) + 1
}

// observe narrows the interval by the Date of a response, with the times of its request and its arrival.
func (c *clock) observe(date, sent, received time.Time) {
	earliest := date.Add(-c.skew).UnixMicro()
	latest := date.Add(time.Second+c.skew).UnixMicro() + received.Sub(sent).Microseconds()
	c.mu.Lock()
	defer c.mu.Unlock()
	oldEarliest, oldLatest := c.at(received)
	switch {
	case !c.sampled:
	case earliest > oldLatest || latest < oldEarliest:
		// Two servers differ, or a server's clock was set, or this machine slept: only the union is certain.
		earliest, latest = min(earliest, oldEarliest), max(latest, oldLatest)
	default:
		earliest, latest = max(earliest, oldEarliest), min(latest, oldLatest)
	}
	c.sampled, c.computed, c.earliest, c.latest = true, received, earliest, latest
}

// observeDates makes each attempt of a call observe its response's Date.
func (c *clock) observeDates(o *dynamodb.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("effectonceClock", func(
			ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
		) (middleware.DeserializeOutput, middleware.Metadata, error) {
			sent := time.Now()
			out, md, err := next.HandleDeserialize(ctx, in)
			received := time.Now()
			// A response without a request id is a proxy's.
			if res, ok := out.RawResponse.(*smithyhttp.Response); ok && res != nil &&
				res.Header.Get("X-Amzn-Requestid") != "" {
				if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
					c.observe(date, sent, received)
				}
			}
			return out, md, err
		}), middleware.After)
	})
}
