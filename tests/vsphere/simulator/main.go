// SPDX-License-Identifier: Apache-2.0

// A vCenter for tests: govmomi's simulator, with GPUs in passthrough on every host. What a vSphere client can do is
// done through its own API; what a client cannot do to a vCenter (expire its sessions, restart it, count its calls) is
// asked of it on -control: POST /expire, POST /restart?milliseconds=N, GET /calls (and POST to start counting anew).
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vmware/govmomi/simulator"
	_ "github.com/vmware/govmomi/vapi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const vapiSession = "vmware-api-session-id"

// notifyingFields tells property collectors of a set custom attribute, as vCenter does and the simulator does not.
type notifyingFields struct{ *simulator.CustomFieldsManager }

func (f *notifyingFields) SetField(ctx *simulator.Context, req *types.SetField) soap.HasFault {
	body := f.CustomFieldsManager.SetField(ctx, req)
	if entity, ok := ctx.Map.Get(req.Entity).(mo.Entity); ok && body.Fault() == nil {
		values := entity.Entity().CustomValue
		ctx.WithLock(entity, func() {
			ctx.Update(entity, []types.PropertyChange{{Name: "customValue", Val: values}, {Name: "value", Val: values}})
		})
	}
	return body
}

// front stands before the simulator: it forgets sessions, counts calls, and goes away for a while.
type front struct {
	sync.Mutex
	handler    http.Handler
	seen, dead map[string]bool
	calls      map[string]int
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Lock()
	expired := f.dead[r.Header.Get(vapiSession)]
	for _, cookie := range r.Cookies() {
		f.seen[cookie.Value] = true
		expired = expired || f.dead[cookie.Value]
	}
	f.seen[r.Header.Get(vapiSession)] = true
	if r.URL.Path != "/sdk" {
		f.calls["REST"]++
	}
	f.Unlock()
	if expired {
		r.Header.Del("Cookie")
		r.Header.Del(vapiSession)
	}
	f.handler.ServeHTTP(w, r)
}

func (f *front) expire() {
	f.Lock()
	defer f.Unlock()
	for id := range f.seen {
		f.dead[id] = id != ""
	}
}

func addGpus(host *simulator.HostSystem, count int) {
	for n := range count {
		id := fmt.Sprintf("0000:%02x:00.0", 0x3b+n)
		host.Hardware.PciDevice = append(host.Hardware.PciDevice, types.HostPciDevice{Id: id, ClassId: 0x302, Bus: byte(0x3b + n),
			VendorId: 0x10de, DeviceId: 0x2330, VendorName: "NVIDIA Corporation", DeviceName: "NVIDIA H100", SubVendorId: 0x10de, SubDeviceId: 0x1839})
		host.Config.PciPassthruInfo = append(host.Config.PciPassthruInfo, &types.HostPciPassthruInfo{Id: id, DependentDevice: id,
			PassthruEnabled: true, PassthruCapable: true, PassthruActive: true})
		host.Config.GraphicsInfo = append(host.Config.GraphicsInfo, types.HostGraphicsInfo{DeviceName: "NVIDIA H100",
			VendorName: "NVIDIA Corporation", PciId: id, GraphicsType: "direct", MemorySizeInKB: 80 << 20})
	}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8989", "address of the vCenter")
	control := flag.String("control", "127.0.0.1:8990", "address of the test's own control, plain HTTP")
	machines := flag.Int("machines", 4, "VMs of each resource pool")
	pools := flag.Int("pools", 0, "resource pools below the cluster's own")
	gpus := flag.Int("gpus", 2, "GPUs of each host")
	off := flag.Bool("off", false, "VMs are powered off at first")
	cert := flag.String("cert", "", "PEM certificate")
	key := flag.String("key", "", "its PEM key")
	flag.Parse()
	model := simulator.VPX()
	model.Machine, model.Pool, model.Autostart = *machines, *pools, !*off
	model.ServiceContent.About.ApiVersion, model.ServiceContent.About.Version = "8.0.3.0", "8.0.3"
	if err := model.Create(); err != nil {
		log.Fatal(err)
	}
	defer model.Remove()
	for _, each := range model.Map().All("HostSystem") {
		addGpus(each.(*simulator.HostSystem), *gpus)
	}
	for _, each := range model.Map().All("VirtualMachine") { // pyvmomi refuses enumerations that are empty
		for _, runtime := range []*types.VirtualMachineRuntimeInfo{&each.(*simulator.VirtualMachine).Runtime, &each.(*simulator.VirtualMachine).Summary.Runtime} {
			runtime.FaultToleranceState = types.VirtualMachineFaultToleranceStateNotConfigured
			runtime.RecordReplayState = types.VirtualMachineRecordReplayStateInactive
		}
	}
	fields := model.Map().Get(*model.ServiceContent.CustomFieldsManager).(*simulator.CustomFieldsManager)
	model.Map().Put(&notifyingFields{fields})

	model.Service.Listen = &url.URL{Host: "127.0.0.1:0", User: url.UserPassword("user", "pass")}
	model.Service.RegisterEndpoints = true
	inner := model.Service.NewServer()
	defer inner.Close()
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	f := &front{handler: model.Service.ServeMux, seen: map[string]bool{}, dead: map[string]bool{}, calls: map[string]int{}}
	model.Map().Handler = func(_ *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
		f.Lock()
		defer f.Unlock()
		f.calls[method.Name]++
		return nil, nil
	}
	start := func() *http.Server {
		server := &http.Server{Addr: *listen, Handler: f, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ErrorLog: log.New(os.Stderr, "", 0)}
		go func() {
			if err := server.ListenAndServeTLS("", ""); err != http.ErrServerClosed {
				log.Fatal(err)
			}
		}()
		return server
	}
	server := start()
	http.HandleFunc("POST /expire", func(http.ResponseWriter, *http.Request) { f.expire() })
	http.HandleFunc("POST /restart", func(_ http.ResponseWriter, r *http.Request) {
		away, _ := strconv.Atoi(r.URL.Query().Get("milliseconds"))
		_ = server.Close() // every connection with it
		f.expire()
		time.Sleep(time.Duration(away) * time.Millisecond)
		server = start()
	})
	http.HandleFunc("/calls", func(w http.ResponseWriter, r *http.Request) {
		f.Lock()
		defer f.Unlock()
		_ = json.NewEncoder(w).Encode(f.calls)
		if r.Method == http.MethodPost {
			clear(f.calls)
		}
	})
	go func() { log.Fatal(http.ListenAndServe(*control, nil)) }()
	fmt.Println("ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	_ = server.Close()
}
