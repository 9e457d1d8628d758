package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS is the config section "tls" of a backend.
type TLS struct {
	Enabled            bool   `koanf:"enabled" doc:"use TLS; implied by an https or rediss address and by every other key here"`
	CA                 string `koanf:"ca" doc:"PEM file of the certificate authorities to trust instead of the system's"`
	Cert               string `koanf:"cert" doc:"PEM file of the client certificate"`
	Key                string `koanf:"key" doc:"PEM file of the client certificate's private key"`
	ServerName         string `koanf:"server_name" doc:"name to expect in the server's certificate instead of the host in the address"`
	InsecureSkipVerify bool   `koanf:"insecure_skip_verify" doc:"accept any server certificate (for experiments only)"`
}

// On tells whether the section asks for TLS.
func (t TLS) On() bool { return t != TLS{} }

// Validate checks the section without reading files.
func (t TLS) Validate() error {
	if (t.Cert == "") != (t.Key == "") {
		return errors.New("tls: cert and key belong together; only one is given")
	}
	return nil
}

// Config reads the files. It returns nil if the section asks for nothing and force is false. The client
// certificate is read again for every connection, so it can be renewed in place.
func (t TLS) Config(force bool) (*tls.Config, error) {
	if !t.On() && !force {
		return nil, nil
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: ca: %s holds no PEM certificate", t.CA)
		}
	}
	if t.Cert != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
			if err != nil {
				return nil, fmt.Errorf("tls: cert %s, key %s: %w", t.Cert, t.Key, err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return c, nil
}
