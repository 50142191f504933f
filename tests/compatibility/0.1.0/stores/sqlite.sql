BEGIN TRANSACTION;
CREATE TABLE attachments (
      node TEXT NOT NULL, uuid TEXT NOT NULL, domain_uuid TEXT NOT NULL, domain_name TEXT NOT NULL,
      state TEXT NOT NULL, since REAL NOT NULL, live INTEGER NOT NULL, config INTEGER NOT NULL,
      reason TEXT NOT NULL, generation INTEGER NOT NULL, PRIMARY KEY (node, uuid)
    ) STRICT;
INSERT INTO "attachments" VALUES('node-c','node-c-0','606ef660-97e7-4293-92c4-c8b7480e0c99','web','attached',1795403027.96655,1,1,'',2);
CREATE TABLE documents (
      collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
      PRIMARY KEY (collection, key)
    ) STRICT;
INSERT INTO "documents" VALUES('tokens','5d9db8d4','{"id":"5d9db8d4","hash":"2cc05d0b3a55f6027a1d77bab2125ac97aa6c51987bed5cecd92cc51e703e51b","role":"admin","name":"first run","project":"","node":"","created":1795403026.035115,"created_by":"first run","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','1e70bb98','{"id":"1e70bb98","hash":"c81a1ae1c0529af997438e912e3bf40af4be8bde6fae7e6aba8bff14320e38bc","role":"node","name":"node-a","project":"","node":"node-a","created":1795403026.2686434,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','24c1cfb2','{"id":"24c1cfb2","hash":"6a951b511c78e788997ae3c034819c26adb99df41ec565968f7f5095c59241f5","role":"node","name":"node-b","project":"","node":"node-b","created":1795403026.3799553,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','422ee237','{"id":"422ee237","hash":"22a676177a502c11342dc17732a1c49d0d7738aec1e26f9f28ffc833d68e2b0f","role":"node","name":"node-c","project":"","node":"node-c","created":1795403026.4762836,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','3de6f163','{"id":"3de6f163","hash":"db7ce996392f0f4ca09d92e1768ff4f0c8cd61a139e1cf11837e30af86ebb16a","role":"operator","name":"operator","project":"","node":"","created":1795403026.5903454,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','875fa690','{"id":"875fa690","hash":"dc6cc0912c79b4322bd2017b8d9066fd80c7b6d37d24faa1d417bfee91dc306d","role":"viewer","name":"viewer","project":"","node":"","created":1795403026.633635,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('tokens','c26e8249','{"id":"c26e8249","hash":"cdcbd68e8a50478bfdd160e8813f9cb57e21758366fbbc1cb401826a009b5097","role":"tenant","name":"tenant","project":"vision","node":"","created":1795403026.6774642,"created_by":"5d9db8d4","expires":null,"revoked":null,"generation":1,"max_priority":5,"may_preempt":true,"label":"blue","vm":""}');
INSERT INTO "documents" VALUES('tokens','f988db94','{"id":"f988db94","hash":"35b598bc796381e115df5c4e6d6a43dce885ff2e48a81998b0b9e707d02939ac","role":"operator","name":"revoked","project":"","node":"","created":1795403026.7181318,"created_by":"5d9db8d4","expires":1805403026.718076,"revoked":1795403026.7628999,"generation":2,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('idempotency','4df7df7ef2c9292063a872698c9f87ae98981c73546d69bb0f11949da01bf4b4','{"request": "1af06ef674c3d2c0c9e30e226c7b10cfeacf0fa73196223fba86cfba595b827e", "began": 1795403027.2152097, "status": 201, "headers": {"content-type": "application/json"}, "body": "{\"id\": \"8c643af8343a4e05\", \"state\": \"held\", \"owner_kind\": \"label\", \"owner\": \"once\", \"project\": \"default\", \"count\": 1, \"memory_mib\": 4096, \"compute_percent\": 20, \"priority\": 0, \"node\": \"\", \"slots\": [{\"gpu\": \"node-a:node-a-0\", \"memory_mib\": 4096, \"compute_percent\": 20}], \"drawn_mib\": 0, \"grants\": [], \"created\": \"2026-11-23T03:03:47.217510Z\", \"ended\": null, \"reason\": \"\", \"origin\": \"\", \"generation\": 2}"}');
INSERT INTO "documents" VALUES('enrolments','5996112da038','{"id":"5996112da038","hash":"d661e467b1cbfbdddac1a843e97209983b683ffe422b5354766747869ea70041","role":"tenant","name":"open","project":"vision","node":"","vm":"","label":"","reservation":"","created":1795403027.2737236,"created_by":"3de6f163","expires":1795406627.2737236,"token_seconds":null,"used":null,"token_id":"","withdrawn":null,"generation":1}');
INSERT INTO "documents" VALUES('enrolments','b4fe933579b1','{"id":"b4fe933579b1","hash":"577637b28226e753feb36c2d59a39d0e2a5a4c7cf7f20625c90d5e5ca5cd63ba","role":"tenant","name":"used","project":"vision","node":"","vm":"","label":"","reservation":"","created":1795403027.322957,"created_by":"3de6f163","expires":1795406627.322957,"token_seconds":null,"used":1795403027.4257214,"token_id":"a9a94c1b","withdrawn":null,"generation":2}');
INSERT INTO "documents" VALUES('enrolments','78e3854f12f9','{"id":"78e3854f12f9","hash":"3d4217f40c10d2bfdaaf9e7f8309c7b57452acb1713437e2dc3556661317b5a5","role":"tenant","name":"withdrawn","project":"vision","node":"","vm":"","label":"","reservation":"","created":1795403027.3711758,"created_by":"3de6f163","expires":1795406627.3711758,"token_seconds":null,"used":null,"token_id":"","withdrawn":1795403027.4689653,"generation":2}');
INSERT INTO "documents" VALUES('tokens','a9a94c1b','{"id":"a9a94c1b","hash":"26781ee458f48ed7c9c4d1c7230b47e1e1c99018b5bd9965a51be4294bfafe17","role":"tenant","name":"used","project":"vision","node":"","created":1795403027.4258728,"created_by":"enrolment b4fe933579b1","expires":null,"revoked":null,"generation":1,"max_priority":null,"may_preempt":null,"label":"","vm":""}');
INSERT INTO "documents" VALUES('machines','606ef660-97e7-4293-92c4-c8b7480e0c99','{"uuid": "606ef660-97e7-4293-92c4-c8b7480e0c99", "name": "web", "node": "node-a", "project": "vision", "count": 1, "memory_mib": 4096, "compute_percent": 20, "priority": 2, "mode": "auto", "problems": [], "reservation": "", "refused": ""}');
INSERT INTO "documents" VALUES('machines','606ef660-97e7-4293-92c4-c8b7480e0c98','{"uuid": "606ef660-97e7-4293-92c4-c8b7480e0c98", "name": "wrong", "node": "node-a", "project": "default", "count": 0, "memory_mib": 0, "compute_percent": 0, "priority": 0, "mode": "auto", "problems": ["memory-mib=-1: give 1"], "reservation": "", "refused": ""}');
CREATE TABLE events (
      number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
      subject TEXT NOT NULL, text TEXT NOT NULL
    ) STRICT;
INSERT INTO "events" VALUES(1,1.79540302603521227838e+09,'token.made','5d9db8d4','admin first run, by first run');
INSERT INTO "events" VALUES(2,1.79540302626870203021e+09,'token.made','1e70bb98','node node-a, by 5d9db8d4');
INSERT INTO "events" VALUES(3,1.79540302627380728723e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 46922cdd68e4e2c3');
INSERT INTO "events" VALUES(4,1.79540302628773164751e+09,'node.up','node-a','simulated at 127.0.0.1:1');
INSERT INTO "events" VALUES(5,1.79540302628778409956e+09,'gpu.joined','node-a:node-a-0','simulated, 65536 MiB');
INSERT INTO "events" VALUES(6,1.79540302628780937188e+09,'gpu.joined','node-a:node-a-1','simulated, 65536 MiB');
INSERT INTO "events" VALUES(7,1.7954030262878210545e+09,'gpu.joined','node-a:node-a-2','simulated, 65536 MiB');
INSERT INTO "events" VALUES(8,1.79540302638002276418e+09,'token.made','24c1cfb2','node node-b, by 5d9db8d4');
INSERT INTO "events" VALUES(9,1.79540302638178277021e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 1aba697a0b4a2c1d');
INSERT INTO "events" VALUES(10,1.79540302639086914063e+09,'node.up','node-b','simulated at 127.0.0.1:1');
INSERT INTO "events" VALUES(11,1.79540302639091181756e+09,'gpu.joined','node-b:node-b-0','simulated, 65536 MiB');
INSERT INTO "events" VALUES(12,1.79540302647634768488e+09,'token.made','422ee237','node node-c, by 5d9db8d4');
INSERT INTO "events" VALUES(13,1.79540302647799801831e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 13a5ccea51e77219');
INSERT INTO "events" VALUES(14,1795403026.48653,'node.up','node-c','simulated at 127.0.0.1:1');
INSERT INTO "events" VALUES(15,1.79540302648657441137e+09,'gpu.joined','node-c:node-c-0','simulated, 65536 MiB');
INSERT INTO "events" VALUES(16,1.79540302659040188794e+09,'token.made','3de6f163','operator operator, by 5d9db8d4');
INSERT INTO "events" VALUES(17,1.79540302659220719341e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 07c9f131eaf036ff');
INSERT INTO "events" VALUES(18,1.79540302663369655614e+09,'token.made','875fa690','viewer viewer, by 5d9db8d4');
INSERT INTO "events" VALUES(19,1.79540302663539862639e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 67210125a8638201');
INSERT INTO "events" VALUES(20,1.79540302667752957343e+09,'token.made','c26e8249','tenant tenant, by 5d9db8d4');
INSERT INTO "events" VALUES(21,1.79540302667907595637e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request 2fae500179722641');
INSERT INTO "events" VALUES(22,1.79540302671819496159e+09,'token.made','f988db94','operator revoked, by 5d9db8d4');
INSERT INTO "events" VALUES(23,1.79540302672139573097e+09,'audit.post','5d9db8d4','POST /v1/tokens: 201, 5d9db8d4 (first run) from 127.0.0.1, request d3e999b8e38af567');
INSERT INTO "events" VALUES(24,1.79540302676296138761e+09,'token.revoked','f988db94','by 5d9db8d4');
INSERT INTO "events" VALUES(25,1.79540302676540708542e+09,'audit.delete','5d9db8d4','DELETE /v1/tokens/f988db94: 200, 5d9db8d4 (first run) from 127.0.0.1, request 4fc3201fa38a6419');
INSERT INTO "events" VALUES(26,1.79540302683952069286e+09,'quota.set','vision','8 vGPUs, 65536 MiB, 400 % (0: no limit), may preempt, priority at most 7');
INSERT INTO "events" VALUES(27,1.79540302684549188611e+09,'audit.put','5d9db8d4','PUT /v1/quotas/vision: 200, 5d9db8d4 (first run) from 127.0.0.1, request b2dbf639544458f7');
INSERT INTO "events" VALUES(28,1.79540302688653874395e+09,'quota.set','audio','1 vGPUs, 0 MiB, 0 % (0: no limit)');
INSERT INTO "events" VALUES(29,1.79540302688828349109e+09,'audit.put','5d9db8d4','PUT /v1/quotas/audio: 200, 5d9db8d4 (first run) from 127.0.0.1, request d6e79d8a7409b6ad');
INSERT INTO "events" VALUES(30,1.7954030269354872703e+09,'reservation.held','fe6732e98c6a88ff','2 vGPU(s) on node-a:node-a-0, node-a:node-a-1');
INSERT INTO "events" VALUES(31,1.79540302693558120731e+09,'reservation.made','fe6732e98c6a88ff','2 vGPUs of 4096 MiB and 20 % for label blue');
INSERT INTO "events" VALUES(32,1.79540302694198036195e+09,'audit.post','5d9db8d4','POST /v1/reservations: 201, 5d9db8d4 (first run) from 127.0.0.1, request ff0768fe576f95ad');
INSERT INTO "events" VALUES(33,1.79540302698796463013e+09,'reservation.held','ccdea5389598689a','1 vGPU(s) on node-a:node-a-0');
INSERT INTO "events" VALUES(34,1.79540302698805022234e+09,'reservation.made','ccdea5389598689a','1 vGPU of 4096 MiB and 20 % for project vision');
INSERT INTO "events" VALUES(35,1.79540302699255108838e+09,'audit.post','5d9db8d4','POST /v1/reservations: 201, 5d9db8d4 (first run) from 127.0.0.1, request 2b277ffd6dd018db');
INSERT INTO "events" VALUES(36,1.79540302703922748563e+09,'reservation.held','782bf2a0e2c18f40','1 vGPU(s) on node-a:node-a-0');
INSERT INTO "events" VALUES(37,1.79540302703928279877e+09,'reservation.made','782bf2a0e2c18f40','1 vGPU of 4096 MiB and 20 % for vm 606ef660-97e7-4293-92c4-c8b7480e0c99');
INSERT INTO "events" VALUES(38,1.79540302704594922065e+09,'audit.post','5d9db8d4','POST /v1/reservations: 201, 5d9db8d4 (first run) from 127.0.0.1, request 51673627c9768c7f');
INSERT INTO "events" VALUES(39,1.79540302709304833411e+09,'reservation.held','5fd72829d07b9a4f','1 vGPU(s) on node-a:node-a-0');
INSERT INTO "events" VALUES(40,1.7954030270931303501e+09,'reservation.made','5fd72829d07b9a4f','1 vGPU of default memory and default compute for label old');
INSERT INTO "events" VALUES(41,1.79540302709775233267e+09,'audit.post','5d9db8d4','POST /v1/reservations: 201, 5d9db8d4 (first run) from 127.0.0.1, request 0ba8793461be03af');
INSERT INTO "events" VALUES(42,1.79540302714315700531e+09,'reservation.ended','5fd72829d07b9a4f','deleted by the operator');
INSERT INTO "events" VALUES(43,1.79540302714544749256e+09,'audit.delete','5d9db8d4','DELETE /v1/reservations/5fd72829d07b9a4f: 200, 5d9db8d4 (first run) from 127.0.0.1, request f56b13531d4294da');
INSERT INTO "events" VALUES(44,1.7954030272179903984e+09,'reservation.held','8c643af8343a4e05','1 vGPU(s) on node-a:node-a-0');
INSERT INTO "events" VALUES(45,1.79540302721803808217e+09,'reservation.made','8c643af8343a4e05','1 vGPU of 4096 MiB and 20 % for label once');
INSERT INTO "events" VALUES(46,1.79540302723335480693e+09,'audit.post','3de6f163','POST /v1/reservations: 201, 3de6f163 (operator) from 127.0.0.1, request 6bd3f67855626e91');
INSERT INTO "events" VALUES(47,1.79540302727372360225e+09,'enrolment.made','5996112da038','tenant open of vision, by 3de6f163');
INSERT INTO "events" VALUES(48,1.79540302728155684464e+09,'audit.post','3de6f163','POST /v1/enrolments: 201, 3de6f163 (operator) from 127.0.0.1, request 6898b53092be56b5');
INSERT INTO "events" VALUES(49,1.79540302732295703894e+09,'enrolment.made','b4fe933579b1','tenant used of vision, by 3de6f163');
INSERT INTO "events" VALUES(50,1.79540302732994055748e+09,'audit.post','3de6f163','POST /v1/enrolments: 201, 3de6f163 (operator) from 127.0.0.1, request 6945118d8abd19e8');
INSERT INTO "events" VALUES(51,1.795403027371175766e+09,'enrolment.made','78e3854f12f9','tenant withdrawn of vision, by 3de6f163');
INSERT INTO "events" VALUES(52,1.79540302738161873822e+09,'audit.post','3de6f163','POST /v1/enrolments: 201, 3de6f163 (operator) from 127.0.0.1, request b2a059e2a366ee26');
INSERT INTO "events" VALUES(53,1.7954030274259238243e+09,'token.made','a9a94c1b','tenant used, by enrolment b4fe933579b1');
INSERT INTO "events" VALUES(54,1.79540302742572140688e+09,'enrolment.used','b4fe933579b1','token a9a94c1b for used of vision');
INSERT INTO "events" VALUES(55,1.79540302742761468885e+09,'audit.post','enrolment-b4fe933579b1','POST /v1/enrol: 201, enrolment-b4fe933579b1 (used) from 127.0.0.1, request efbbd1c432578f71');
INSERT INTO "events" VALUES(56,1.79540302746896529191e+09,'enrolment.withdrawn','78e3854f12f9','by 3de6f163');
INSERT INTO "events" VALUES(57,1.79540302747055172919e+09,'audit.delete','3de6f163','DELETE /v1/enrolments/78e3854f12f9: 200, 3de6f163 (operator) from 127.0.0.1, request fc0fe925c4bf5266');
INSERT INTO "events" VALUES(58,1.79540302747707271576e+09,'grant.made','64e655e8c2acace2','1 vGPU of 2048 MiB and 25 % for train.py');
INSERT INTO "events" VALUES(59,1.79540302748339056964e+09,'session.running','4fb83bd3010d4578','train.py on node-a');
INSERT INTO "events" VALUES(60,1.79540302748601365086e+09,'grant.made','2cc2b83bddaea3d4','1 vGPU of 2048 MiB and 25 % for ünïcode');
INSERT INTO "events" VALUES(61,1.79540302749259471888e+09,'session.running','a8da1a44f28ccf2a','ünïcode on node-a');
INSERT INTO "events" VALUES(62,1.79540302749488949775e+09,'grant.made','445f35cb688d9248','1 vGPU of 2048 MiB and 25 % for over');
INSERT INTO "events" VALUES(63,1.79540302751387476922e+09,'session.running','a09fdf31507b85c8','over on node-a');
INSERT INTO "events" VALUES(64,1.79540302751723766325e+09,'grant.ended','445f35cb688d9248','done');
INSERT INTO "events" VALUES(65,1.7954030276234967708e+09,'grant.made','1ff17344ba340153','2 vGPUs of 1000 MiB and 10 % for job.py, drawn on reservation fe6732e98c6a88ff');
INSERT INTO "events" VALUES(66,1.79540302764890813825e+09,'audit.post','c26e8249','POST /v1/sessions: 201, c26e8249 (tenant) from 127.0.0.1, request 6a082352a8e2de50');
INSERT INTO "events" VALUES(67,1.7954030276899828911e+09,'reservation.made','185caf7cdfec21c2','4 vGPUs of 60000 MiB and 100 % for project late');
INSERT INTO "events" VALUES(68,1.79540302769347667691e+09,'audit.post','5d9db8d4','POST /v1/reservations: 201, 5d9db8d4 (first run) from 127.0.0.1, request e59849db64e8a810');
INSERT INTO "events" VALUES(69,1.79540302770149254795e+09,'vm.request','606ef660-97e7-4293-92c4-c8b7480e0c99','web on node-a: 1 vGPU(s) of 4096 MiB and 20 %, auto, priority 2');
INSERT INTO "events" VALUES(70,1.79540302770164895062e+09,'vm.problem','606ef660-97e7-4293-92c4-c8b7480e0c98','memory-mib=-1: give 1');
INSERT INTO "events" VALUES(71,1.79540302773595857616e+09,'node.drained','node-b','it takes no new grants');
INSERT INTO "events" VALUES(72,1.79540302773841977117e+09,'audit.put','5d9db8d4','PUT /v1/nodes/node-b/drain: 200, 5d9db8d4 (first run) from 127.0.0.1, request 1a7bd4c71f53e28d');
INSERT INTO "events" VALUES(73,1.79540302777566933636e+09,'gpu.draining','node-a:node-a-2','to be drained');
INSERT INTO "events" VALUES(74,1.79540302778577828411e+09,'audit.put','5d9db8d4','PUT /v1/gpus/node-a:node-a-2/switch: 202, 5d9db8d4 (first run) from 127.0.0.1, request 3ed65e564489a026');
INSERT INTO "events" VALUES(75,1.79540302778645944597e+09,'gpu.drained','node-a:node-a-2','nothing is on it');
INSERT INTO "events" VALUES(76,1.79540302787984704969e+09,'gpu.draining','node-c:node-c-0','to be native');
INSERT INTO "events" VALUES(77,1.79540302788705778119e+09,'audit.put','5d9db8d4','PUT /v1/gpus/node-c:node-c-0/switch: 202, 5d9db8d4 (first run) from 127.0.0.1, request 6f04f39e5c4c5d39');
INSERT INTO "events" VALUES(78,1.79540302788754510881e+09,'gpu.native','node-c:node-c-0','one VM''s alone');
INSERT INTO "events" VALUES(79,1.79540302796653938291e+09,'gpu.attached','node-c:node-c-0','to VM web');
INSERT INTO "events" VALUES(80,1.79540302796824932096e+09,'audit.put','5d9db8d4','PUT /v1/gpus/node-c:node-c-0/attachment: 202, 5d9db8d4 (first run) from 127.0.0.1, request 63215f1425451869');
INSERT INTO "events" VALUES(81,1.79540302804008746143e+09,'adapter.recorded','606ef660-97e7-4293-92c4-c8b7480e0c99','a note of an adapter');
INSERT INTO "events" VALUES(82,1.79540302804145598418e+09,'audit.post','3de6f163','POST /v1/events: 201, 3de6f163 (operator) from 127.0.0.1, request 2684bfda36b95fd1');
CREATE TABLE gpus (
      node TEXT NOT NULL, uuid TEXT NOT NULL, model TEXT NOT NULL, memory_mib INTEGER NOT NULL,
      software INTEGER NOT NULL, context_overhead_mib INTEGER NOT NULL,
      reserved_mib INTEGER NOT NULL, architecture TEXT NOT NULL DEFAULT '', numa_node INTEGER NOT NULL DEFAULT -1, nvlink_group TEXT NOT NULL DEFAULT '', fault TEXT NOT NULL DEFAULT '', pci_address TEXT NOT NULL DEFAULT '', native_problem TEXT NOT NULL DEFAULT '', PRIMARY KEY (node, uuid)
    ) STRICT;
INSERT INTO "gpus" VALUES('node-a','node-a-0','simulated',65536,1,0,0,'',-1,'','','0000:65:00.0','');
INSERT INTO "gpus" VALUES('node-a','node-a-1','simulated',65536,1,0,0,'',-1,'','','','');
INSERT INTO "gpus" VALUES('node-a','node-a-2','simulated',65536,1,0,0,'',-1,'','','','');
INSERT INTO "gpus" VALUES('node-b','node-b-0','simulated',65536,1,0,0,'',-1,'','','0000:65:00.0','');
INSERT INTO "gpus" VALUES('node-c','node-c-0','simulated',65536,1,0,0,'',-1,'','','0000:65:00.0','');
CREATE TABLE grants (
      id TEXT PRIMARY KEY, request_id TEXT NOT NULL, node TEXT NOT NULL, vgpus TEXT NOT NULL,
      priority INTEGER NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
      generation INTEGER NOT NULL, ended REAL, reason TEXT NOT NULL
    , job TEXT NOT NULL DEFAULT '', job_domain TEXT NOT NULL DEFAULT '', job_processes INTEGER NOT NULL DEFAULT 0, project TEXT NOT NULL DEFAULT '', reservation TEXT NOT NULL DEFAULT '', ending TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "grants" VALUES('64e655e8c2acace2','e1800095e1161bff','node-a','[{"gpu_uuid":"node-a-1","memory_mib":2048,"compute_percent":25,"overhead_mib":0,"node":"node-a"}]',4,1.79540302747686338425e+09,'live',1,NULL,'','','',0,'vision','','');
INSERT INTO "grants" VALUES('2cc2b83bddaea3d4','72292aca523f3ba2','node-a','[{"gpu_uuid":"node-a-1","memory_mib":2048,"compute_percent":25,"overhead_mib":0,"node":"node-a"}]',0,1.79540302748582148557e+09,'live',1,NULL,'','','',0,'','','');
INSERT INTO "grants" VALUES('445f35cb688d9248','9b2c0040b0f71bf4','node-a','[{"gpu_uuid":"node-a-1","memory_mib":2048,"compute_percent":25,"overhead_mib":0,"node":"node-a"}]',0,1.79540302749470734593e+09,'ended',2,1.79540302751721072196e+09,'done','','',0,'audio','','');
INSERT INTO "grants" VALUES('1ff17344ba340153','bdc827ca8bb47ef0','node-a','[{"gpu_uuid":"node-a-0","memory_mib":1000,"compute_percent":10,"overhead_mib":0,"node":"node-a"},{"gpu_uuid":"node-a-1","memory_mib":1000,"compute_percent":10,"overhead_mib":0,"node":"node-a"}]',0,1.79540302762342882155e+09,'live',1,NULL,'','eb2ea4621fc2b75057e0c449f38be7f5','project vision',2,'vision','fe6732e98c6a88ff','');
CREATE TABLE nodes (
      name TEXT PRIMARY KEY, address TEXT NOT NULL, port INTEGER NOT NULL, version TEXT NOT NULL,
      vgpu_count INTEGER NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL
    , labels TEXT NOT NULL DEFAULT '[]', drained INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "nodes" VALUES('node-a','127.0.0.1',1,'simulated',4,'up',1,'[["rack","r12"]]',0);
INSERT INTO "nodes" VALUES('node-b','127.0.0.1',1,'simulated',4,'up',1,'[["rack","r12"]]',1);
INSERT INTO "nodes" VALUES('node-c','127.0.0.1',1,'simulated',4,'up',1,'[["rack","r12"]]',0);
CREATE TABLE quotas (
      project TEXT PRIMARY KEY, vgpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL,
      compute_percent INTEGER NOT NULL, may_preempt INTEGER NOT NULL, generation INTEGER NOT NULL
    , max_priority INTEGER) STRICT;
INSERT INTO "quotas" VALUES('vision',8,65536,400,1,1,7);
INSERT INTO "quotas" VALUES('audio',1,0,0,0,1,NULL);
CREATE TABLE reservations (
      id TEXT PRIMARY KEY, owner_kind TEXT NOT NULL, owner TEXT NOT NULL, project TEXT NOT NULL,
      count INTEGER NOT NULL, memory_mib INTEGER NOT NULL, compute_percent INTEGER NOT NULL,
      priority INTEGER NOT NULL, node TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
      slots TEXT NOT NULL, generation INTEGER NOT NULL, ended REAL, reason TEXT NOT NULL
    , origin TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "reservations" VALUES('fe6732e98c6a88ff','label','blue','vision',2,4096,20,0,'',1.79540302693472480772e+09,'held','[{"node":"node-a","gpu_uuid":"node-a-0","memory_mib":4096,"compute_percent":20,"overhead_mib":0},{"node":"node-a","gpu_uuid":"node-a-1","memory_mib":4096,"compute_percent":20,"overhead_mib":0}]',2,NULL,'','');
INSERT INTO "reservations" VALUES('ccdea5389598689a','project','vision','vision',1,4096,20,0,'',1.79540302698732066148e+09,'held','[{"node":"node-a","gpu_uuid":"node-a-0","memory_mib":4096,"compute_percent":20,"overhead_mib":0}]',2,NULL,'','');
INSERT INTO "reservations" VALUES('782bf2a0e2c18f40','vm','606ef660-97e7-4293-92c4-c8b7480e0c99','default',1,4096,20,3,'',1.79540302703870105743e+09,'held','[{"node":"node-a","gpu_uuid":"node-a-0","memory_mib":4096,"compute_percent":20,"overhead_mib":0}]',2,NULL,'','vsphere.dc1');
INSERT INTO "reservations" VALUES('5fd72829d07b9a4f','label','old','default',1,0,0,0,'',1.79540302709235858919e+09,'ended','[{"node":"node-a","gpu_uuid":"node-a-0","memory_mib":16384,"compute_percent":25,"overhead_mib":0}]',3,1.79540302714312696458e+09,'deleted by the operator','');
INSERT INTO "reservations" VALUES('8c643af8343a4e05','label','once','default',1,4096,20,0,'',1.79540302721750974655e+09,'held','[{"node":"node-a","gpu_uuid":"node-a-0","memory_mib":4096,"compute_percent":20,"overhead_mib":0}]',2,NULL,'','');
INSERT INTO "reservations" VALUES('185caf7cdfec21c2','project','late','default',4,60000,100,0,'',1.7954030276891417504e+09,'waiting','[]',1,NULL,'','');
CREATE TABLE sessions (
      id TEXT PRIMARY KEY, grant_id TEXT NOT NULL, node TEXT NOT NULL, channel TEXT NOT NULL,
      host TEXT NOT NULL, program TEXT NOT NULL, client_pid INTEGER NOT NULL,
      client_uid INTEGER NOT NULL, domain_uuid TEXT NOT NULL, domain_name TEXT NOT NULL,
      started REAL NOT NULL, state TEXT NOT NULL, ended REAL, reason TEXT NOT NULL
    , request_id TEXT NOT NULL DEFAULT '', chosen TEXT NOT NULL DEFAULT '[]', relay TEXT NOT NULL DEFAULT '') STRICT;
INSERT INTO "sessions" VALUES('4fb83bd3010d4578','64e655e8c2acace2','node-a','shm','','train.py',4711,0,'','',1.79540302747708749777e+09,'running',NULL,'','e1800095e1161bff','[]','');
INSERT INTO "sessions" VALUES('a8da1a44f28ccf2a','2cc2b83bddaea3d4','node-a','shm','','ünïcode',4711,0,'606ef660-97e7-4293-92c4-c8b7480e0c99','web',1.79540302748602819448e+09,'running',NULL,'','72292aca523f3ba2','[]','');
INSERT INTO "sessions" VALUES('a09fdf31507b85c8','445f35cb688d9248','node-a','shm','','over',4711,0,'','',1.79540302749490332601e+09,'ended',1.79540302751722979542e+09,'done','9b2c0040b0f71bf4','[]','');
INSERT INTO "sessions" VALUES('2c7a09cb712c8880','1ff17344ba340153','node-a','tcp','laptop','job.py',0,0,'','',1.79540302762350654597e+09,'opening',NULL,'','bdc827ca8bb47ef0','[]','');
CREATE TABLE switches (
      node TEXT NOT NULL, uuid TEXT NOT NULL, mode TEXT NOT NULL, target TEXT NOT NULL,
      preempt INTEGER NOT NULL, reason TEXT NOT NULL, since REAL NOT NULL,
      generation INTEGER NOT NULL, PRIMARY KEY (node, uuid)
    ) STRICT;
INSERT INTO "switches" VALUES('node-a','node-a-2','drained','drained',0,'nothing is on it',1.79540302778621840484e+09,4);
INSERT INTO "switches" VALUES('node-c','node-c-0','native','native',0,'one VM''s alone',1.79540302788742113116e+09,4);
CREATE TABLE usage (
      project TEXT NOT NULL, hour INTEGER NOT NULL, vgpu_seconds REAL NOT NULL,
      memory_mib_seconds REAL NOT NULL, compute_percent_seconds REAL NOT NULL,
      until REAL NOT NULL, PRIMARY KEY (project, hour)
    ) STRICT;
INSERT INTO "usage" VALUES('vision',498723,1.57228823300056319567e+00,6.44009260237030684969e+03,3.14457646600112639134e+01,1.79540302747702312465e+09);
INSERT INTO "usage" VALUES('default',498723,7.64923697999620344489e-01,3.74897286758199334137e+03,1.55490620949922231375e+01,1.79540302748597621921e+09);
INSERT INTO "usage" VALUES('audio',498723,2.23203670002476428635e-02,4.57121116165071725854e+01,5.58009175006191071588e-01,1.79540302751718544964e+09);
CREATE INDEX grants_by_state ON grants (state, created);
CREATE INDEX sessions_by_grant ON sessions (grant_id);
CREATE INDEX events_by_subject ON events (subject, number);
CREATE INDEX usage_by_hour ON usage (hour);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',82);
COMMIT;
PRAGMA user_version = 10;
