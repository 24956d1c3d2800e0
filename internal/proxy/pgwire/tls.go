package pgwire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// tlsSettings are the ssl… parameters. Files are read for each connection, so that
// they can be renewed.
type tlsSettings struct {
	mode string // sslmode
	root string // sslrootcert: a file, "system", or "" for none
	cert string // sslcert and sslkey: files, or both ""
	key  string
}

// readTLS takes the ssl… parameters, and reads the files to validate them.
func readTLS(c *config, p *parameters) {
	s := &c.tls
	s.root = p.take("sslrootcert")
	if s.root == "system" { // any server could get a certificate of the system's roots
		s.mode = p.oneOf("sslmode", "verify-full")
	} else {
		s.mode = p.oneOf("sslmode", "prefer", "disable", "allow", "require", "verify-ca", "verify-full")
	}
	s.cert, s.key = p.take("sslcert"), p.take("sslkey")
	if s.mode == "disable" {
		s.cert, s.key = "", ""
	} else if s.cert == "" && s.key == "" {
		cert, key := c.home(".postgresql/postgresql.crt"), c.home(".postgresql/postgresql.key")
		if exists(cert) && exists(key) {
			s.cert, s.key = cert, key
		}
	}
	if (s.cert == "") != (s.key == "") {
		p.fail(errors.New("sslcert and sslkey must be given together"))
	}
	if s.mode == "disable" {
		return
	}
	if root := c.home(".postgresql/root.crt"); s.root == "" && exists(root) {
		s.root = root
	}
	if s.mode == "verify-ca" && s.root == "" {
		p.fail(errors.New("sslmode verify-ca needs an sslrootcert: under the system's roots any server of " +
			"any name would do; verify-full checks the name"))
	}
	for _, t := range c.targets {
		if !t.unix() { // unix sockets have no TLS
			_, err := s.config(t.host)
			p.fail(err)
			return
		}
	}
}

func exists(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Stat(path)
	return err == nil
}

// config returns the TLS configuration for a handshake with a host.
func (s *tlsSettings) config(host string) (*tls.Config, error) {
	t := &tls.Config{ServerName: host}
	if s.cert != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, fmt.Errorf("sslcert is %q and sslkey is %q, must be a certificate and its key, "+
				"which must not be encrypted: %w", s.cert, s.key, err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	if s.root != "" && s.root != "system" {
		pem, err := os.ReadFile(s.root)
		if err != nil {
			return nil, fmt.Errorf("sslrootcert: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sslrootcert is %q, must be a PEM file with certificates", s.root)
		}
	}
	// Go checks the certificate and the name in it, unless InsecureSkipVerify is set.
	t.InsecureSkipVerify = s.mode != "verify-full"
	if s.mode == "verify-ca" || s.mode == "require" && s.root != "" {
		t.VerifyConnection =
			func(state tls.ConnectionState) error { return verifyChain(t.RootCAs, state.PeerCertificates) }
	}
	return t, nil
}

// verifyChain checks that one of the roots issued the server's certificate. It does not check the name.
func verifyChain(roots *x509.CertPool, certs []*x509.Certificate) error {
	if len(certs) == 0 {
		return errors.New("the server sent no certificate")
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range certs[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := certs[0].Verify(options)
	return err
}
