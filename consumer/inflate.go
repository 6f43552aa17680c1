package consumer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/segmentio/kafka-go/compress"
)

// inflate returns a batch's uncompressed records.
func (d *decoder) inflate(h *batchHeader) (out []byte, err error) {
	kind := compress.Compression(h.attributes & attrCompression)
	switch kind {
	case compress.None:
		return h.body, nil
	case compress.Zstd:
		out, err = d.inflateZstd(h.body)
	case compress.Snappy:
		if err = d.checkSnappy(h.body); err == nil {
			out, err = d.stream(kind.Codec(), h.body)
		}
	case compress.Gzip, compress.Lz4:
		out, err = d.stream(kind.Codec(), h.body)
	default:
		return nil, fmt.Errorf("the record batch at offset %d has an unknown compression (%d)", h.base, int8(kind))
	}
	if err != nil {
		return nil, fmt.Errorf("the record batch at offset %d cannot be decompressed to at most Config.MaxBatchBytes "+
			"(%d): %w", h.base, d.maxBatch, err)
	}
	return out, nil
}

var errLarge = errors.New("it is larger")

// stream decompresses with a codec whose memory is bounded by its output and a small window.
func (d *decoder) stream(codec compress.Codec, b []byte) ([]byte, error) {
	zr := codec.NewReader(bytes.NewReader(b))
	defer func() { _ = zr.Close() }()
	out := bytes.NewBuffer(make([]byte, 0, min(4*len(b), d.maxBatch)))
	n, err := out.ReadFrom(io.LimitReader(zr, int64(d.maxBatch)+1))
	if err == nil && n > int64(d.maxBatch) {
		err = errLarge
	}
	return out.Bytes(), err
}

// inflateZstd does not stream: a stream of ten bytes may ask for a window of 512 MiB, which a streaming decoder
// allocates at once. The decoder's memory limit would also refuse a small batch with such a window, so the capacity of
// the output is the limit.
func (d *decoder) inflateZstd(b []byte) (out []byte, err error) {
	if d.zstd == nil {
		if d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
			zstd.WithDecodeAllCapLimit(true)); err != nil {
			return nil, err
		}
	}
	// The decoder has several errors for an output that does not fit.
	for size := min(4*len(b), d.maxBatch); ; size = min(4*size, d.maxBatch) {
		if out, err = d.zstd.DecodeAll(b, make([]byte, 0, size)); err == nil || size == d.maxBatch {
			return out, err
		}
	}
}

// checkSnappy checks the declared lengths before anything is allocated for them. b is one block, or Xerial's frames
// with one block each, as Java writes them.
func (d *decoder) checkSnappy(b []byte) error {
	if !bytes.HasPrefix(b, xerial) || len(b) < xerialHead {
		return d.checkBlock(b)
	}
	for b = b[xerialHead:]; len(b) > 0; {
		r := reader{b: b}
		block := r.take(int(r.int32()))
		if r.short {
			return errors.New("a frame ends too early")
		}
		if err := d.checkBlock(block); err != nil {
			return err
		}
		b = r.b
	}
	return nil
}

// checkBlock checks the declared length of a block. Decompression checks the sum of all blocks.
func (d *decoder) checkBlock(b []byte) error {
	size, n := binary.Uvarint(b)
	switch {
	case n <= 0:
		return errors.New("a block has no length")
	case size > uint64(d.maxBatch):
		return errLarge
	}
	return nil
}

// xerial begins Xerial's framing. xerialHead is the length of its header.
var xerial = []byte("\x82SNAPPY\x00")

const xerialHead = 16
