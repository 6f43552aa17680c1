package kafkaconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// handshakeTimeout bounds a TLS handshake: a port that speaks something else may never answer.
const handshakeTimeout = 5 * time.Second

// Dial opens a connection to a broker, with its TLS handshake. Use it as the Dial of a publisher or consumer and leave
// their TLS unset: Dial reads the files for each connection, and explains a refused certificate.
func (c *Conn) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	plain, err := c.dialer.DialContext(ctx, network, address)
	if err != nil || !c.cfg.TLS {
		return plain, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	cfg, err := c.cfg.tlsConfig(host)
	if err != nil {
		_ = plain.Close()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn := tls.Client(plain, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("TLS with the broker at %s: %w%s", address, err, advice(err, cfg.ServerName))
	}
	return conn, nil
}

// tlsConfig reads the files.
func (c Config) tlsConfig(host string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.ServerName != "" {
		cfg.ServerName = c.ServerName
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka-ca-file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--kafka-ca-file: %s has no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		own, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kafka-cert-file and --kafka-key-file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	return cfg, nil
}

// advice returns what to do about a failed handshake, or "" if the error suffices.
func advice(err error, serverName string) string {
	var (
		invalid  x509.CertificateInvalidError
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		record   tls.RecordHeaderError
		network  *net.OpError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return ": the broker's certificate has run out, or is not valid yet: renew it there, and compare the clocks"
	case errors.As(err, &unknown):
		return ": the broker's certificate stands on another CA than those of --kafka-ca-file"
	case errors.As(err, &hostname):
		return fmt.Sprintf(": the broker's certificate is not for %s: connect by a name that it has, or set "+
			"--kafka-server-name", serverName)
	case errors.As(err, &record):
		return ": that port does not speak TLS: use another port, or leave --kafka-tls out"
	case errors.As(err, &network) && network.Op == "remote error":
		return ": the broker refuses the client's certificate: look at --kafka-cert-file, its dates and its CA"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ": does that port speak TLS?"
	}
	return ""
}
